"""What the API tells about runs, compared with the library."""

import json
import os
import shutil
import struct
import time

import pytest
import torch
from safetensors.torch import load_file
from starlette.testclient import TestClient

import regard
from regard.data import CaseTask, load
from regard.studio import create_app
from regard.studio._image_files import to_png
from regard.studio._run_folders import EXAMPLE
from regard.training import Checkpoints, attention_maps


def payload(answer):
    """(header, arrays as the browser reads them)."""
    assert answer.status_code == 200, answer.text
    body = answer.content
    (length,) = struct.unpack("<I", body[:4])
    header = json.loads(body[4 : 4 + length])
    buffer = body[-(-(4 + length) // 8) * 8 :]
    kinds = {
        "uint8": torch.uint8,
        "float32": torch.float32,
        "uint16": torch.uint16,
        "int32": torch.int32,
        "int8": torch.int8,
        "int16": torch.int16,
    }
    arrays = {
        name: torch.frombuffer(
            bytearray(buffer[about["offset"] : about["offset"] + about["length"]]), dtype=kinds[about["dtype"]]
        ).reshape(about["shape"])
        for name, about in header["arrays"].items()
        if about["length"]
    }
    for name, about in header["arrays"].items():
        if "scale" in about:
            scale = arrays[about["scale"]]
            stored = arrays[name].float() * (arrays[name].float().abs() if about.get("squared") else 1.0)
            arrays[name] = stored * scale.reshape(*scale.shape, *[1] * (stored.ndim - scale.ndim))
    return header, arrays


def assert_same_maps(header, arrays, maps):
    """Every map is there, each weight to within half a step of 1/255 of its row's largest."""
    names = [layer["name"] for layer in header["meta"]["layers"]]
    assert names == list(maps)
    stored = [name for name, about in header["arrays"].items() if "scale" in about]
    assert len(stored) == len(names)
    for name, found in zip(stored, maps.values(), strict=True):
        weights = found.weights[0]
        assert arrays[name].shape == weights.shape
        error = (arrays[name] - weights).abs().amax(-1)
        assert bool((error <= weights.amax(-1) / 255 * 0.51 + 1e-6).all())


def test_runs_are_listed_with_what_they_are(client, trained):
    listed = {run["id"]: run for run in client.get("/api/runs").json()}
    assert {name: (run["kind"], run["views"]) for name, run in listed.items()} == {
        "gaussian": ("image", ["heads", "image"]),
        "vit": ("image", ["image"]),
        "case-rnn": ("case", ["tokens"]),
        "case-transformer": ("case", ["tokens"]),
        "text": ("text", ["tokens"]),
    }
    for name, run in listed.items():
        kept = regard.load_run(trained / name)
        assert (run["recipe"], run["state"]) == (kept.recipe.name, "finished")
        assert run["step"] == kept.metrics[-1]["step"]
        assert run["accuracy"] == kept.evaluations[-1]["validation_accuracy"]


def test_a_run_s_details_are_those_of_its_folder(client, trained):
    detail = client.get("/api/runs/gaussian").json()
    run = regard.load_run(trained / "gaussian")
    assert detail["settings"]["task"]["data"] == "fashion-mini"
    assert detail["summary"] == run.summary
    assert [each["step"] for each in detail["checkpoints"]] == run.checkpoints.steps()
    assert (detail["shape"], len(detail["classes"]), detail["samples"]) == ([1, 28, 28], 10, {"test": 1000})


def test_metrics_come_from_an_offset_on(client, trained, runs, client_of):
    lines = regard.load_run(trained / "gaussian").metrics
    first = client.get("/api/runs/gaussian/metrics").json()
    assert (first["lines"], first["more"], first["anew"]) == (lines, False, False)
    assert first["heads"] == (trained / "gaussian" / "heads.jsonl").stat().st_size
    assert first["checkpoint"] == regard.load_run(trained / "gaussian").checkpoints.steps()[-1]
    path = runs / "gaussian" / "metrics.jsonl"
    changing = client_of(runs)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 1000, "loss": null}\n{"step": 1001')
    after = changing.get(f"/api/runs/gaussian/metrics?offset={first['offset']}").json()
    assert after["lines"] == [{"step": 1000, "loss": None}]
    assert after["state"] == "training"
    path.write_text('{"step": 1}\n', encoding="utf-8")
    cut = changing.get(f"/api/runs/gaussian/metrics?offset={after['offset']}").json()
    assert (cut["anew"], cut["lines"]) == (True, [{"step": 1}])


def test_whether_a_run_is_still_training_is_told_by_what_it_writes(runs, client_of):
    client = client_of(runs)
    (runs / "gaussian" / "summary.json").unlink()
    (runs / "gaussian" / "metrics.jsonl").touch()
    assert client.get("/api/runs/gaussian").json()["state"] == "training"
    long_ago = time.time() - 1000
    os.utime(runs / "gaussian" / "metrics.jsonl", (long_ago, long_ago))
    assert client.get("/api/runs/gaussian").json()["state"] == "stopped"


@pytest.mark.parametrize("steps", ["all", None, "unknown"])
def test_a_run_with_a_summary_is_finished_however_new_its_files_are(runs, client_of, steps):
    path = runs / "gaussian" / "summary.json"
    summary = json.loads(path.read_text())
    if steps != "all":
        summary["steps"] = steps
    path.write_text(json.dumps(summary))
    (runs / "gaussian" / "metrics.jsonl").touch()
    assert client_of(runs).get("/api/runs/gaussian").json()["state"] == "finished"


def test_the_heads_view_holds_the_trajectory(client, trained):
    header, arrays = payload(client.get("/api/runs/gaussian/heads"))
    kept = regard.load_run(trained / "gaussian").heads
    assert header["view"] == "heads"
    assert header["meta"]["steps"] == list(kept.steps)
    for number, center in enumerate(kept.center):
        assert torch.equal(arrays[f"center{number}"], center)
    assert "no Gaussian heads" in client.get("/api/runs/vit/heads").json()["error"]


def test_images_of_the_test_set_are_the_test_set_s(client):
    test = load("fashion-mini").test()
    page = client.get("/api/runs/gaussian/images?source=test&start=997&count=10").json()
    assert page["total"] == 1000
    assert [(each["index"], each["label"]) for each in page["samples"]] == [
        (index, test.classes[test.labels[index]]) for index in (997, 998, 999)
    ]
    answer = client.get(page["samples"][0]["address"])
    assert (answer.headers["content-type"], answer.content) == ("image/png", to_png(test.images[997]))
    assert client.get("/api/runs/gaussian/images?source=test&start=5000").json() == {"samples": [], "total": 1000}
    assert client.get("/api/runs/gaussian/images/test/1000").status_code == 404
    assert client.get("/api/runs/case-rnn/images?source=test").json()["total"] == 0


@pytest.mark.parametrize("name", ["gaussian", "vit"])
def test_image_attention_is_what_capture_sees(client, trained, name):
    run = regard.load_run(trained / name)
    data = run.recipe.task.data_set
    network = run.network()
    inputs = regard.data.normalize(data.test().images[7:8], data.mean, data.std)
    header, arrays = payload(client.get(f"/api/runs/{name}/images/test/7/attention"))
    assert header["view"] == "image"
    assert_same_maps(header, arrays, attention_maps(network, inputs))
    assert torch.equal(arrays["image"], data.test().images[7].permute(1, 2, 0).expand(-1, -1, 3))
    told = header["meta"]["studio"]
    chances = network(inputs).softmax(-1)[0]
    assert told["guesses"][0]["label"] == data.classes[chances.argmax()]
    assert told["guesses"][0]["chance"] == pytest.approx(chances.max().item(), rel=1e-4)
    assert (told["label"], told["step"]) == (data.classes[data.test().labels[7]], run.checkpoints.steps()[-1])


def test_a_run_that_merges_tokens_shows_each_layer_on_its_own_grid(client_of, tmp_path):
    recipe = regard.recipes.get("cifar10-transformer").smoke()
    run = regard.train(recipe, folder=tmp_path / "merged", accelerator="cpu", tensorboard=False, progress=False)
    client = client_of(tmp_path)
    [listed] = client.get("/api/runs").json()
    assert (listed["views"], listed["problem"]) == (["heads", "image"], None)
    header, _ = payload(client.get("/api/runs/merged/heads"))
    assert [layer["grid"] for layer in header["meta"]["layers"]] == [[14, 14], [7, 7]]
    header, arrays = payload(client.get("/api/runs/merged/images/test/7/attention"))
    assert [layer["grid"] for layer in header["meta"]["layers"]] == [[14, 14], [7, 7]]
    data = recipe.task.data_set
    inputs = regard.data.normalize(data.test().images[7:8], data.mean, data.std)
    assert_same_maps(header, arrays, attention_maps(run.network(), inputs))


def test_an_image_that_is_sent_is_seen_like_the_same_one_of_the_test_set(client):
    content = client.get("/api/runs/vit/images/test/7").content
    sent = client.post("/api/runs/vit/attention", files={"image": ("any name", content)})
    header, arrays = payload(sent)
    _, expected = payload(client.get("/api/runs/vit/images/test/7/attention"))
    assert header["meta"]["studio"]["label"] is None
    assert arrays.keys() == expected.keys()
    assert all(torch.equal(arrays[key], expected[key]) for key in arrays)


def test_what_is_sent_and_is_no_image_is_refused_in_words(client):
    refused = client.post("/api/runs/vit/attention", files={"image": ("x.png", b"not an image")})
    assert (refused.status_code, refused.json()["error"][:24]) == (400, "the file is not an image")
    assert client.post("/api/runs/vit/attention", files={"other": b"x"}).status_code == 422
    assert client.post("/api/runs/vit/attention", files={"image": ("x.png", b"")}).status_code == 400
    image = client.get("/api/runs/vit/images/test/7").content
    assert client.post("/api/runs/text/attention", files={"image": ("x.png", image)}).status_code == 409


def test_a_step_s_network_is_asked_for_by_number(client, trained):
    steps = regard.load_run(trained / "vit").checkpoints.steps()
    told = [
        payload(client.get(f"/api/runs/vit/images/test/0/attention?step={step}"))[0]["meta"]["studio"]["step"]
        for step in steps
    ]
    assert told == steps
    missing = client.get("/api/runs/vit/images/test/0/attention?step=12345")
    assert missing.status_code == 404
    assert f"there are {', '.join(map(str, steps))}" in missing.json()["error"]


@pytest.mark.parametrize("name", ["case-rnn", "case-transformer"])
@pytest.mark.parametrize("task", ["upper", "lower"])
def test_a_sentence_is_written_and_the_alignment_is_what_capture_sees(client, trained, name, task):
    header, arrays = payload(client.post(f"/api/runs/{name}/sentence", json={"text": "I am a Student", "task": task}))
    meta, told = header["meta"], header["meta"]["studio"]
    sentence = ("<U> " if task == "upper" else "<L> ") + "I am a Student"
    assert "".join(meta["tokens"]["source"]) == sentence
    assert told["answer"] == CaseTask().answer(sentence)
    assert told["right"] == (told["said"] == told["answer"])
    network, vocabulary = regard.load_run(trained / name).network(), CaseTask.vocabulary
    source = torch.tensor([vocabulary.encode(sentence)])
    heard = torch.tensor([[vocabulary.numbers[token] for token in meta["tokens"]["told"]]])
    # What it says at each step is what the network itself says to what it was told.
    said = [vocabulary.tokens[number] for number in network(source, heard)[0].argmax(-1).tolist()]
    assert said == meta["tokens"]["target"]
    keep = torch.ones_like(source, dtype=torch.bool)
    assert_same_maps(header, arrays, attention_maps(network, source, heard, source_keep=keep))
    sides = {layer["name"]: (layer["asks"], layer["reads"]) for layer in meta["layers"]}
    if name == "case-rnn":
        assert sides == {"attention": ("target", "source")}
    else:
        assert sides["decoder.0.attention"] == ("target", "told")
        assert sides["decoder.0.cross_attention"] == ("target", "source")


def test_masked_words_are_guessed(client):
    header, _ = payload(client.post("/api/runs/text/sentence", json={"text": "It was a <mask> day"}))
    assert header["meta"]["tokens"]["text"][:4] == ["it", "was", "a", "<mask>"]
    (guesses,) = header["meta"]["studio"]["masked"]
    assert len(guesses) == 5
    assert 0 < sum(guess["chance"] for guess in guesses) <= 1.001


@pytest.mark.parametrize(
    ("name", "text", "status", "words"),
    [
        ("case-rnn", "naïve", 400, "contains the character 'ï'"),
        ("case-rnn", "", 422, "text"),
        ("case-rnn", "a" * 161, 422, "text"),
        ("text", "word " * 9, 400, "trained on 8 at a time"),
        ("text", "  \n ", 400, "no words"),
        ("gaussian", "words", 409, "no network that attends to sentences"),
    ],
)
def test_a_sentence_that_cannot_be_read_is_refused_in_words(client, name, text, status, words):
    answer = client.post(f"/api/runs/{name}/sentence", json={"text": text})
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_a_run_without_a_checkpoint_says_so(runs, client_of):
    shutil.rmtree(runs / "vit" / "checkpoints")
    answer = client_of(runs).get("/api/runs/vit/images/test/0/attention")
    assert answer.status_code == 409
    assert "no checkpoint yet" in answer.json()["error"]


def test_a_damaged_checkpoint_is_passed_over_or_named(runs, client_of):
    steps = regard.load_run(runs / "vit").checkpoints.steps()
    for path in (runs / "vit" / "checkpoints").rglob("*.safetensors"):
        if path.parent.name.endswith(str(steps[-1])):
            path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    client = client_of(runs)
    assert client.get("/api/runs/vit/images/test/0/attention").status_code == 200
    answer = client.get(f"/api/runs/vit/images/test/0/attention?step={steps[-1]}")
    assert (answer.status_code, "digest" in answer.json()["error"]) == (422, True)


def test_of_thousands_of_damaged_checkpoints_a_few_are_tried(runs, client_of, monkeypatch):
    """Other views wait for this one."""
    tried = []
    load = Checkpoints.load
    monkeypatch.setattr(Checkpoints, "load", lambda *given, **options: tried.append(given) or load(*given, **options))
    for step in range(10**6, 10**6 + 50):
        (runs / "vit" / "checkpoints" / f"step-{step:08d}").mkdir()
    answer = client_of(runs).get("/api/runs/vit/images/test/0/attention")
    assert (answer.status_code, "state.json is missing" in answer.json()["error"]) == (422, True)
    assert len(tried) <= 10


def test_weights_in_half_precision_load(runs, client_of):
    run = regard.load_run(runs / "gaussian")
    step = run.checkpoints.steps()[-1]
    kept = run.checkpoint()
    half = {f"network.{name}": tensor.half() for name, tensor in kept.part("network").items()}
    state = {key: value for key, value in kept.state.items() if key not in ("tensors", "step")}
    shutil.rmtree(runs / "gaussian" / "checkpoints")
    Checkpoints(runs / "gaussian" / "checkpoints").save(step, half, state)
    stored = load_file(next((runs / "gaussian" / "checkpoints").rglob("*.safetensors")))
    assert torch.float16 in {tensor.dtype for tensor in stored.values()}
    assert client_of(runs).get("/api/runs/gaussian/images/test/0/attention").status_code == 200


def test_the_example_comes_last_with_its_images(example, trained):
    (example / "images").mkdir()
    (example / "images" / "cat-1.png").write_bytes(to_png(torch.zeros(1, 40, 30, dtype=torch.uint8)))
    (example / "images" / "dog-2.png").write_bytes(to_png(torch.zeros(3, 40, 30, dtype=torch.uint8)))  # it takes gray
    client = TestClient(create_app(trained, example=example), base_url="http://127.0.0.1")
    last = client.get("/api/runs").json()[-1]
    assert (last["id"], last["example"], last["title"]) == ("example", True, "example")
    assert client.get("/api/runs/example").json()["samples"] == {"shipped": 1, "test": 1000}
    page = client.get("/api/runs/example/images?source=shipped").json()
    assert [(each["label"], each["index"]) for each in page["samples"]] == [("cat", 0)]
    header, arrays = payload(client.get("/api/runs/example/images/shipped/0/attention"))
    assert arrays["image"].shape[:2] == (28, 28)
    # A cat is none of its classes: the network is not wrong about it, and its own images come first.
    assert header["meta"]["studio"]["label"] is None
    assert list(client.get("/api/runs/example").json()["samples"]) == ["test", "shipped"]
    (example / "images" / "cat-1.png").rename(example / "images" / "Sneaker-1.png")
    client = TestClient(create_app(trained, example=example), base_url="http://127.0.0.1")
    header, _ = payload(client.get("/api/runs/example/images/shipped/0/attention"))
    assert header["meta"]["studio"]["label"] == "Sneaker"
    assert list(client.get("/api/runs/example").json()["samples"]) == ["shipped", "test"]


def test_the_example_that_comes_with_the_package_shows_something_at_once(tmp_path):
    client = TestClient(create_app(tmp_path / "nothing yet"), base_url="http://127.0.0.1")
    (example,) = client.get("/api/runs").json()
    assert (example["id"], example["state"], example["problem"]) == ("example", "finished", None)
    assert example["views"] == ["heads", "image"]
    detail = client.get("/api/runs/example").json()
    page = client.get("/api/runs/example/images?source=shipped").json()
    assert page["total"] >= 4
    assert {sample["label"] for sample in page["samples"]} <= set(detail["classes"])
    assert payload(client.get("/api/runs/example/heads"))[0]["meta"]["steps"][-1] == example["step"]
    header, _ = payload(client.get(page["samples"][0]["address"] + "/attention"))
    guesses = header["meta"]["studio"]["guesses"]
    assert guesses[0]["label"] == page["samples"][0]["label"]
    assert sum(file.stat().st_size for file in EXAMPLE.rglob("*") if file.is_file()) <= 4 * 2**20


@pytest.mark.parametrize("example", [None, "absent"])
def test_without_an_example_there_is_none(tmp_path, example):
    folder = None if example is None else tmp_path / example
    client = TestClient(create_app(tmp_path, example=folder), base_url="http://127.0.0.1")
    assert client.get("/api/runs").json() == []
    assert client.get("/api/runs/example").status_code == 404


def test_pages_that_need_no_run(client):
    for name in ("mechanism", "convolution", "claims"):
        assert payload(client.get(f"/api/pages/{name}"))[0]["view"] == name
    assert client.get("/api/pages/other").status_code == 422


def test_a_claim_is_examined_when_it_is_asked_for(client):
    answer = client.post("/api/claims/hw4-softargmax-sign/evidence").json()
    assert (answer["verdict"], answer["found"]["agrees"]) == ("fails", True)
    assert [part["accepted"] for part in answer["found"]["parts"]] == [False, True, False]
    assert answer["found"]["picture"]["address"].startswith("data:image/png;base64,")
    slow = next(claim.id for claim in regard.claims.all_claims() if claim.slow)
    assert "regard verify --slow" in client.post(f"/api/claims/{slow}/evidence").json()["error"]
    assert client.post("/api/claims/temperature/evidence").status_code == 404


def test_the_description_is_complete(client):
    paths = client.get("/api/openapi.json").json()["paths"]
    assert len(paths) == 15
    for path, methods in paths.items():
        for method in methods.values():
            assert path.startswith("/api/")
            assert method["summary"]
            (kind,) = method["responses"]["200"]["content"]
            assert kind in ("application/json", "application/octet-stream", "image/png")
            assert method["responses"]["404"]["content"]["application/json"]["schema"]["$ref"].endswith("Problem")


def test_the_page_is_sent_once(client):
    first = client.get("/studio.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = client.get("/studio.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_that_opens_is_kept_however_many_images_one_looks_at(client_of, trained, monkeypatch):
    from regard.studio import _routes

    made = []

    def story(run=None):
        made.append(run)
        return regard.show("mechanism").payload

    monkeypatch.setattr(_routes, "story", story)
    client = client_of(trained)
    for index in range(_routes.MOST_KEPT + 1):
        assert client.get("/api/pages/story?run=gaussian").status_code == 200
        assert client.get(f"/api/runs/gaussian/images/test/{index}/attention").status_code == 200
    assert len(made) == 1
