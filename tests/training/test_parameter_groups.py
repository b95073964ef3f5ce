"""Parameter groups for a training loop of one's own."""

import torch
from torch import nn

import regard
from regard.training import parameter_groups


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3, 3))
        self.mix = nn.Linear(3, 3)

    def no_weight_decay(self):
        return {"table"}


def test_each_parameter_once_and_what_a_module_names_does_not_decay():
    model = nn.Sequential(
        Own(), regard.GaussianAttention(18, 9), regard.conv_to_attention(nn.Conv2d(2, 2, 3), trainable=True)
    )
    groups = parameter_groups(model, 0.1, weight_decay=0.2, center_factor=4.0)
    found = {name: group for group in groups for name, _ in group["params"]}
    assert found.keys() == dict(model.named_parameters()).keys()
    assert sum(len(group["params"]) for group in groups) == len(found)
    for name, group in found.items():
        decays = name.endswith("weight")
        assert group["weight_decay"] == (0.2 if decays else 0.0), name
        assert group["lr"] == (0.4 if name.endswith("center") else 0.1), name
    torch.optim.AdamW(groups)
    torch.optim.SGD(groups)
