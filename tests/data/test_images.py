"""Image files: case 21 of spec/shards.md, section 9, and the collections of its sections 7 and 8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from firesteel.core.errors import PlanError
from firesteel.data.image import (
    ParquetDataset,
    read_coco,
    read_images,
    read_tfrecord,
    read_voc,
    write_parquet,
    write_tfrecord,
    write_voc,
)
from firesteel.data.tfrecord import parse_example, read_records

if TYPE_CHECKING:
    from pyspark import SparkContext


def picture(number: int, size: tuple[int, int] = (5, 4)) -> Image.Image:
    width, height = size
    return Image.fromarray(np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8))


def label_of(path: str) -> str:
    return Path(path).stem


def pixels(image: Image.Image) -> list[Any]:
    assert isinstance(image, Image.Image)
    return [image.mode, image.size, np.asarray(image).tolist()]


# read_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six images in two formats, six masks, and things that are neither, in a folder as people name them."""
    root = tmp_path / "my images [1] 50%41"
    (root / "masks").mkdir(parents=True)
    for number in (3, 1, 0, 5, 2, 4):
        picture(number).save(root / f"a{number}.jpg", quality=95)
        picture(number).save(root / f"a{number}.png")
        mask = Image.new("P", (5, 4), number)
        mask.putpalette([value for color in range(256) for value in (255 - color, color, 7)])
        mask.save(root / "masks" / f"a{number}.png")
    (root / ".a9.jpg").write_bytes(b"hidden")
    (root / "notes.txt").write_text("no image")
    return root


@pytest.mark.parametrize("backend", ["pillow", "spark"])
def test_images_by_name_in_order(sc: SparkContext, folder: Path, backend: str) -> None:
    shards = read_images(str(folder), image_type=".png", backend=backend)
    assert [pixels(image) for image in shards.collect()] == [pixels(picture(number)) for number in range(6)]
    labelled = read_images(str(folder), label_func=label_of, backend=backend).collect()
    assert [label for _, label in labelled] == [f"a{number}" for number in range(6)]
    for number, (image, _) in enumerate(labelled):
        with Image.open(folder / f"a{number}.jpg") as expected:
            ours, theirs = np.asarray(image).astype(int), np.asarray(expected.convert("RGB")).astype(int)
        assert abs(ours - theirs).max() <= (0 if backend == "pillow" else 3)  # Java decodes JPEG a little differently


@pytest.mark.parametrize("backend", ["pillow", "spark"])
def test_masks_by_name(sc: SparkContext, folder: Path, backend: str) -> None:
    shards = read_images(folder, target_path=folder / "masks", image_type=".png", backend=backend)
    for number, (image, mask) in enumerate(shards.collect()):
        assert pixels(image) == pixels(picture(number))
        assert pixels(mask) == ["P", (5, 4), [[number] * 5] * 4]  # classes, not colours


@pytest.mark.parametrize("backend", ["pillow", "spark"])
def test_all_images_are_rgb(sc: SparkContext, tmp_path: Path, backend: str) -> None:
    picture(1).convert("L").save(tmp_path / "a.png")
    picture(1).convert("RGBA").save(tmp_path / "b.png")
    found = read_images(tmp_path, image_type=".png", backend=backend).collect()
    assert [pixels(image) for image in found] == [pixels(picture(1).convert("L").convert("RGB")), pixels(picture(1))]


def test_files_lists_and_globs(sc: SparkContext, folder: Path) -> None:
    pattern = str(folder.parent / "*" / "a[12].jpg")
    assert [label for _, label in read_images(pattern, label_of).collect()] == ["a1", "a2"]
    two = [folder / "a5.jpg", f"file://{folder}/a0.jpg"]
    assert [label for _, label in read_images(two, label_of).collect()] == ["a0", "a5"]
    assert read_images(folder / "a3.jpg").num_partitions() == 1


def test_what_cannot_be_read_is_refused_at_once(folder: Path) -> None:
    """Without Spark: while planning."""
    with pytest.raises(PlanError, match=r"label_func and target_path"):
        read_images(folder, label_func=label_of, target_path=folder / "masks")
    (folder / "masks" / "a5.png").unlink()
    with pytest.raises(PlanError, match=r"6 images and 5 masks"):
        read_images(folder, target_path=folder / "masks")
    with pytest.raises(PlanError, match=r"nothing ends with '.tif'"):
        read_images(folder, image_type=".tif")
    with pytest.raises(PlanError, match=r"Path does not exist.*absent"):
        read_images(folder / "absent")
    with pytest.raises(PlanError, match=r"backend 'opencv'.*pillow, spark"):
        read_images(folder, backend="opencv")


@pytest.mark.parametrize("backend", ["pillow", "spark"])
def test_a_broken_file_is_named(sc: SparkContext, tmp_path: Path, backend: str) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(Exception, match=r"broken\.jpg is no image"):
        read_images(tmp_path, backend=backend).collect()


# VOC

VOC_LABELS = {
    "000001": [[0.1, 0.2, 0.5, 1.0, 11, 0], [0.0, 0.0, 1.0, 1.0, 14, 1]],
    "000002": [],
    "000003": [[0.2, 0.25, 0.4, 0.75, 7, 0]],
}


def thing(name: str, box: list[float], difficult: str = "<difficult>0</difficult>") -> str:
    corners = "".join(
        f"<{tag}>{value}</{tag}>" for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{name}</name>{difficult}<bndbox>{corners}</bndbox></object>"


def make_voc(root: Path) -> None:
    """Three images of 10 × 20 (the last one's annotation does not say so), as VOC2009 has them."""
    home = root / "VOC2009"
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (home / part).mkdir(parents=True)
    things = {
        "000001": thing("dog", [1, 4, 5, 20]) + thing("Person", [0, 0, 10, 20], "<difficult>1</difficult>"),
        "000002": thing("unicorn", [1, 1, 2, 2]),
        "000003": thing("cat", [2, 5, 4, 15], ""),
    }
    size = "<size><width>10</width><height>20</height><depth>3</depth></size>"
    for number, (name, objects) in enumerate(things.items()):
        picture(number, (10, 20)).save(home / "JPEGImages" / f"{name}.jpg")
        said = size if name != "000003" else ""
        (home / "Annotations" / f"{name}.xml").write_text(f"<annotation>{said}{objects}</annotation>")
    (home / "ImageSets" / "Main" / "trainval.txt").write_text("000001\n000002\n000003\n")
    (home / "ImageSets" / "Main" / "cat_val.txt").write_text("000003  1\n")


def voc_label(name: str, columns: int) -> Any:
    return pytest.approx(np.array(VOC_LABELS[name], np.float32).reshape(-1, 6)[:, :columns])


def test_read_voc(sc: SparkContext, tmp_path: Path) -> None:
    make_voc(tmp_path)
    with pytest.warns(UserWarning, match=r"left out: 'unicorn' \(1 boxes\)"):
        shards = read_voc(str(tmp_path), diff=True)
    found = shards.collect()
    assert [image.size for image, _ in found] == [(10, 20)] * 3
    for (_, label), name in zip(found, VOC_LABELS, strict=True):
        assert (label.dtype, label.shape[1]) == (np.float32, 6)
        assert label == voc_label(name, 6)
    ((_, label),) = read_voc(tmp_path, [(2009, "cat_val")]).collect()
    assert label == voc_label("000003", 5)
    ((image, label),) = read_voc(tmp_path, classes=["Person", "dog"], max_samples=1).collect()
    assert image.mode == "RGB"
    assert label[:, 4].tolist() == [1, 0]


def test_read_voc_refuses(tmp_path: Path) -> None:
    make_voc(tmp_path)
    for error in (PlanError, FileNotFoundError):
        with pytest.raises(error, match=r"no split 'test' of 2009.*test\.txt"):
            read_voc(tmp_path, [(2009, "trainval"), (2009, "test")])
    (tmp_path / "VOC2009" / "Annotations" / "000002.xml").unlink()
    with pytest.raises(FileNotFoundError, match=r"000002\.xml"):
        read_voc(tmp_path)
    with pytest.raises(PlanError, match="max_samples"):
        read_voc(tmp_path, max_samples=0)


def test_write_voc(tmp_path: Path) -> None:
    make_voc(tmp_path / "voc")
    with pytest.warns(UserWarning, match="unicorn"):
        write_voc(tmp_path / "voc", [(2009, "trainval")], tmp_path / "d")
    rows = list(ParquetDataset.read_as_torch(tmp_path / "d"))
    for row, name in zip(rows, VOC_LABELS, strict=True):
        path = tmp_path / "voc" / "VOC2009" / "JPEGImages" / f"{name}.jpg"
        assert row["image_id"] == str(path)
        assert row["image"] == path.read_bytes()
        assert (row["label"].dtype, row["label"].shape[1]) == (np.float32, 5)
        assert row["label"] == voc_label(name, 5)
    arguments = {"voc_root_path": tmp_path / "voc", "splits_names": [(2009, "cat_val")], "classes": ["cat"]}
    write_parquet("voc", tmp_path / "d", **arguments)
    (row,) = ParquetDataset.read_as_torch(tmp_path / "d")
    assert row["label"][:, 4].tolist() == [0]


# COCO


def test_read_coco(sc: SparkContext, tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    (tmp_path / "val2017").mkdir()
    names = {7: "000000000007.jpg", 3: "000000000003.jpg", 9: "000000000009.jpg"}
    for number, name in names.items():
        picture(number, (8, 6)).save(tmp_path / "val2017" / name)

    def annotation(image: int, category: int) -> dict[str, Any]:
        polygon = [[1.0, 1.0, 2.0, 1.0, 2.0, 2.0]]
        place = {"bbox": [1.0, 2.0, 3.0, 4.0 + category], "area": 12.5, "segmentation": polygon}
        return {"id": 10 * image + category, "image_id": image, "category_id": category, "iscrowd": 0} | place

    content: dict[str, Any] = {
        "images": [{"id": number, "file_name": name} for number, name in names.items()],
        "annotations": [annotation(7, 1), annotation(3, 2), annotation(7, 5)],
    }
    source = tmp_path / "annotations" / "instances_val2017.json"
    source.write_text(json.dumps(content))
    found = read_coco(str(tmp_path), split="val").collect()
    assert [image.size for image, _ in found] == [(8, 6)] * 3
    assert [target["category_id"] for _, target in found] == [[2], [1, 5], []]
    assert list(found[1][1]) == ["bbox", "category_id", "area", "iscrowd", "segmentation"]
    assert found[1][1]["bbox"] == [[1.0, 2.0, 3.0, 5.0], [1.0, 2.0, 3.0, 9.0]]
    assert found[1][1]["segmentation"][0] == [[1.0, 1.0, 2.0, 1.0, 2.0, 2.0]]

    del content["images"]  # then the files' names are their numbers
    source.write_text(json.dumps(content))
    assert [target["category_id"] for _, target in read_coco(tmp_path, "val").collect()] == [[2], [1, 5], []]

    with pytest.raises(FileNotFoundError, match=r"instances_train2017\.json"):
        read_coco(tmp_path)
    content["images"] = [{"id": 1, "file_name": "absent.jpg"}]
    source.write_text(json.dumps(content))
    with pytest.raises(PlanError, match=r"absent\.jpg"):
        read_coco(tmp_path, "val")


# ImageNet


def make_imagenet(root: Path) -> dict[str, bytes]:
    contents = {}
    for synset in ("n02", "n01"):
        (root / "train" / synset).mkdir(parents=True)
        for number in range(3):
            path = root / "train" / synset / f"{synset}_{number}.JPEG"
            picture(number, (9, 7)).save(path, "JPEG")
            contents[path.name] = path.read_bytes()
    (root / "validation").mkdir()
    for number in range(2):
        path = root / "validation" / f"val_{number}.JPEG"
        picture(10 + number).save(path, "JPEG")
        contents[path.name] = path.read_bytes()
    (root / "synset_labels.txt").write_text("n02\nn03\n")
    return contents


def test_imagenet_records(tmp_path: Path) -> None:
    contents = make_imagenet(tmp_path / "raw")
    picture(1).convert("CMYK").save(tmp_path / "raw" / "train" / "n01" / "n01_cmyk.JPEG", "JPEG")
    picture(1).save(tmp_path / "raw" / "train" / "n01" / "n01_png.JPEG", "PNG")
    arguments = {"imagenet_path": str(tmp_path / "raw"), "training_shards": 3, "validation_shards": 4}
    write_tfrecord("imagenet", str(tmp_path / "records"), **arguments)
    files = sorted((tmp_path / "records").iterdir())
    assert [file.name for file in files] == [
        *(f"train-{shard:05d}-of-00003" for shard in range(3)),
        *(f"validation-{shard:05d}-of-00004" for shard in range(4)),
    ]
    examples = [parse_example(record) for file in files for record in read_records(file)]
    by_name = {example["image/filename"][0].decode(): example for example in examples}
    assert len(by_name) == len(examples) == 10
    for name, data in contents.items():
        example = by_name[name]
        assert example["image/encoded"] == [data]
        assert (example["image/colorspace"], example["image/format"]) == ([b"RGB"], [b"JPEG"])
        assert [int(example[f"image/{part}"][0]) for part in ("width", "height", "channels")] == [
            *((9, 7) if name.startswith("n") else (5, 4)),
            3,
        ]
    labels = {example["image/class/synset"][0]: int(example["image/class/label"][0]) for example in examples}
    assert labels == {b"n01": 1, b"n02": 2, b"n03": 3}
    assert by_name["val_1.JPEG"]["image/class/synset"] == [b"n03"]
    for name in ("n01_cmyk.JPEG", "n01_png.JPEG"):
        from io import BytesIO

        image = Image.open(BytesIO(by_name[name]["image/encoded"][0]))
        assert (image.format, image.mode) == ("JPEG", "RGB")


def test_imagenet_refuses(tmp_path: Path) -> None:
    make_imagenet(tmp_path / "raw")
    with pytest.raises(PlanError, match=r"format 'cifar'.*imagenet"):
        write_tfrecord("cifar", tmp_path / "records")
    with pytest.raises(PlanError, match="imagenet_path"):
        write_tfrecord("imagenet", tmp_path / "records")
    with pytest.raises(PlanError, match="is_training"):
        read_tfrecord("imagenet", tmp_path / "records")
    (tmp_path / "raw" / "synset_labels.txt").write_text("n02\n")
    with pytest.raises(PlanError, match=r"2 images.*1 labels"):
        write_tfrecord("imagenet", tmp_path / "records", imagenet_path=tmp_path / "raw")
    with pytest.raises(FileNotFoundError, match="absent"):
        write_tfrecord("imagenet", tmp_path / "records", imagenet_path=tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="train-00000"):
        read_tfrecord("imagenet", tmp_path, is_training=True)


def test_imagenet_for_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    contents = make_imagenet(tmp_path / "raw")
    write_tfrecord("imagenet", tmp_path / "out", imagenet_path=tmp_path / "raw", training_shards=4, validation_shards=1)
    for is_training, first in ((True, "n"), (False, "v")):
        dataset = read_tfrecord("imagenet", tmp_path / "out", is_training=is_training)
        assert isinstance(dataset, tf.data.Dataset)
        found = {}
        for record in dataset:
            example = tf.train.Example.FromString(record.numpy())
            feature = example.features.feature
            found[feature["image/filename"].bytes_list.value[0].decode()] = feature["image/encoded"].bytes_list.value[0]
        assert found == {name: data for name, data in contents.items() if name.startswith(first)}
