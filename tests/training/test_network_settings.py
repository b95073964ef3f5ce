"""What networks take from the training data before the first step."""

import torch

import regard
from regard.data import normalize
from regard.training import AttentionPyramidSettings, ImageTask, Recipe


def test_a_pyramid_is_whitened_before_the_first_step_by_no_images_beyond_the_limit(tmp_path):
    task = ImageTask("fashion-mini", validation=40, limit=32)
    settings = AttentionPyramidSettings(widths=(8,), depth=1)
    run = regard.train(
        Recipe("whitened", task, settings, epochs=1, batch_size=16),
        folder=tmp_path, accelerator="cpu", tensorboard=False, progress=False,
    )  # fmt: skip
    train = task.data_set.train
    images = normalize(train.images[:32], train.mean, train.std)
    expected = settings.build(task)
    random = expected.embedding.weight.clone()
    expected.whiten(images)
    found = run.network().embedding.weight
    torch.testing.assert_close(found, expected.embedding.weight)
    assert not torch.allclose(found, random)
