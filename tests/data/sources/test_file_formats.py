"""Small files in the official formats, sound and damaged, that the tests write themselves."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.catalogue import sources
from coterie.data import load
from coterie.errors import ConfigError, DataError


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, prefix: str = "", train: str = "train", test: str = "t10k", packed: bool = False):
    """Three training images and two test images of 2x3 pixels; returns the pixels."""
    folder.mkdir(parents=True)
    pixels = np.arange(30, dtype=np.uint8).reshape(5, 2, 3)
    for part, rows in ((train, slice(0, 3)), (test, slice(3, 5))):
        for kind, content in (
            ("images-idx3-ubyte", idx(pixels[rows])),
            ("labels-idx1-ubyte", idx(np.arange(5, dtype=np.uint8)[rows])),
        ):
            path = folder / f"{prefix}{part}-{kind}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content) if packed else content)
    return pixels


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_read_packed_and_unpacked(tmp_path, packed):
    pixels = write_idx(tmp_path / "mnist", packed=packed)
    source = load("mnist", data_dir=tmp_path, peers=1, seed=0)
    expected = (pixels[:3, None] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(source.x_train.numpy(), expected, atol=1e-5)
    assert source.x_train.dtype == torch.float32
    assert source.y_train.tolist() == [0, 1, 2]
    assert source.y_test.tolist() == [3, 4]
    assert source.shape == (1, 2, 3)


def test_torchvision_folders_and_dotted_names_are_found(tmp_path):
    write_idx(tmp_path / "FashionMNIST" / "raw")
    for path in (tmp_path / "FashionMNIST" / "raw").iterdir():
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert load("fashion-mnist", data_dir=tmp_path, peers=1, seed=0).class_names[9] == "ankle-boot"


def test_emnist_images_are_stood_upright(tmp_path):
    pixels = write_idx(tmp_path / "emnist", prefix="emnist-balanced-", test="test")
    (tmp_path / "emnist" / "emnist-balanced-mapping.txt").write_text(
        "\n".join(f"{label} {48 + label}" for label in range(47))
    )
    source = load("emnist", data_dir=tmp_path, peers=1, seed=0)
    np.testing.assert_allclose(source.x_train[0, 0].numpy(), pixels[0].T / 127.5 - 1, atol=1e-6)
    assert source.class_names[:2] == ("0", "1")
    (tmp_path / "emnist" / "emnist-balanced-mapping.txt").write_text("0 48\n")
    with pytest.raises(DataError, match="47 lines"):
        load("emnist", data_dir=tmp_path, peers=1, seed=0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "announces 3 x 2 x 3 = 18 values but holds 17"),
        (lambda content: content + b"x", "holds 19"),
        (lambda content: b"\x00\x00\x0d\x03" + content[4:], "00 00 0d 03, expected 00 00 08 03"),
        (lambda content: content[:6], "within its header"),
        (lambda content: b"", "not an IDX file"),
        (lambda content: gzip.compress(content)[:-12], "truncated or damaged"),
        (lambda content: idx(np.zeros((4, 2, 3), dtype=np.uint8)), "4 images but .* 3 labels"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, damage, message):
    write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", data_dir=tmp_path, peers=1, seed=0)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("shape", [(3, 4, 3), (3, 3, 2)])
def test_idx_images_of_two_sizes_name_both_files(tmp_path, shape):
    write_idx(tmp_path / "mnist")
    train, test = (tmp_path / "mnist" / f"{part}-images-idx3-ubyte" for part in ("train", "t10k"))
    train.write_bytes(idx(np.zeros(shape, dtype=np.uint8)))
    with pytest.raises(DataError, match=f"images of {shape[1]} x {shape[2]} pixels.* of 2 x 3") as caught:
        load("mnist", data_dir=tmp_path, peers=1, seed=0)
    assert str(train) in str(caught.value)
    assert str(test) in str(caught.value)


@pytest.mark.parametrize("part", ["train", "t10k"])
def test_idx_files_without_images_are_named(tmp_path, part):
    write_idx(tmp_path / "mnist")
    images, labels = (tmp_path / "mnist" / f"{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    images.write_bytes(idx(np.zeros((0, 2, 3), dtype=np.uint8)))
    labels.write_bytes(idx(np.zeros(0, dtype=np.uint8)))
    with pytest.raises(DataError, match="holds 0 x 2 x 3 pixels; expected at least one image") as caught:
        load("mnist", data_dir=tmp_path, peers=1, seed=0)
    assert str(images) in str(caught.value)


def test_wrong_labels_are_named(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([3, 10], dtype=np.uint8)))
    with pytest.raises(DataError, match="the label 10; expected 0 to 9"):
        load("mnist", data_dir=tmp_path, peers=1, seed=0)


def test_a_file_that_only_claims_to_be_gzipped(tmp_path):
    write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.rename(path.with_name(path.name + ".gz"))
    with pytest.raises(DataError, match="not a gzip file"):
        load("mnist", data_dir=tmp_path, peers=1, seed=0)


@pytest.mark.parametrize(
    "name", [name for name in sources if name not in ("digits", "synthetic", "huggingface")]
)
def test_missing_files_say_what_was_expected(tmp_path, name, monkeypatch):
    with pytest.raises(DataError, match=r"not found in .*; expected "):
        load(name, data_dir=tmp_path, peers=1, seed=0)
    with pytest.raises(DataError, match="does not exist"):
        load(name, data_dir=tmp_path / "nowhere", peers=1, seed=0)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with pytest.raises(DataError, match="set data_dir"):
        load(name, peers=1, seed=0)


def test_data_folder_from_the_environment(tmp_path, monkeypatch):
    write_idx(tmp_path / "mnist")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert len(load("mnist", peers=1, seed=0).y_train) == 3


def cifar_records(labels: list[tuple[int, ...]]) -> bytes:
    planes = b"".join(bytes([value]) * 1024 for value in (0, 51, 255))
    return b"".join(bytes(label) + planes for label in labels)


CIFAR10_FILES = {
    "data_batch_1.bin": cifar_records([(3,), (1,)]),
    "data_batch_2.bin": cifar_records([(9,)]),
    "test_batch.bin": cifar_records([(0,)]),
}


def write_tar(path: Path, folder: str, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_10_is_read_from_archive_and_folder(tmp_path, packed):
    if packed:
        write_tar(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", CIFAR10_FILES)
    else:
        (tmp_path / "cifar-10-batches-bin").mkdir()
        for name, content in CIFAR10_FILES.items():
            (tmp_path / "cifar-10-batches-bin" / name).write_bytes(content)
    source = load("cifar-10", data_dir=tmp_path, peers=1, seed=0)
    assert source.y_train.tolist() == [3, 1, 9]
    assert source.shape == (3, 32, 32)
    torch.testing.assert_close(source.x_train[0, :, 5, 5], torch.tensor([-1.0, -0.6, 1.0]))
    assert source.class_names[3] == "cat"


def test_names_that_cannot_be_read_do_not_stop_cifar(tmp_path):
    files = {**CIFAR10_FILES, "batches.meta.txt": b"\xff\xfea b c d e f g h i j"}
    write_tar(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
    assert load("cifar-10", data_dir=tmp_path, peers=1, seed=0).class_names[3] == "cat"


def test_cifar_100_uses_the_fine_label(tmp_path):
    files = {"train.bin": cifar_records([(1, 99)]), "test.bin": cifar_records([(2, 7)])}
    write_tar(tmp_path / "cifar-100-binary.tar.gz", "cifar-100-binary", files)
    source = load("cifar-100", data_dir=tmp_path, peers=1, seed=0)
    assert (source.y_train.tolist(), source.y_test.tolist()) == ([99], [7])


def test_damaged_cifar(tmp_path):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    cases = [
        (
            {**CIFAR10_FILES, "test_batch.bin": b"\x00" * 3072},
            "test_batch.bin has 3072 bytes, not a multiple of 3073",
        ),
        ({**CIFAR10_FILES, "test_batch.bin": cifar_records([(10,)])}, "the label 10; expected 0 to 9"),
        (
            {"test_batch.bin": CIFAR10_FILES["test_batch.bin"]},
            "no file data_batch_1.bin; it has test_batch.bin",
        ),
    ]
    for files, message in cases:
        write_tar(archive, "cifar-10-batches-bin", files)
        with pytest.raises(DataError, match=message):
            load("cifar-10", data_dir=tmp_path, peers=1, seed=0)
    write_tar(archive, "cifar-10-batches-bin", CIFAR10_FILES)
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz is truncated or damaged"):
        load("cifar-10", data_dir=tmp_path, peers=1, seed=0)


def test_pickled_cifar_is_refused(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match="pickle and is not read"):
        load("cifar-10", data_dir=tmp_path, peers=1, seed=0)


def jpeg(value: int, mode: str = "RGB", side: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value,) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


def tiny_imagenet(**changes: bytes) -> dict[str, bytes]:
    return {
        "wnids.txt": b"n02\nn01\n",
        "words.txt": b"n01\tgoldfish, carp\nn02\tbullfrog\n",
        "train/n01/images/n01_0.JPEG": jpeg(0),
        "train/n02/images/n02_0.JPEG": jpeg(255, "L"),
        "train/n02/images/n02_1.JPEG": jpeg(255),
        "val/val_annotations.txt": b"val_0.JPEG\tn01\t0\t0\t62\t62\n",
        "val/images/val_0.JPEG": jpeg(0),
        **changes,
    }


def write_tiny(data_dir: Path, files: dict[str, bytes], packed: bool) -> None:
    if packed:
        with zipfile.ZipFile(data_dir / "tiny-imagenet-200.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"tiny-imagenet-200/{name}", content)
        return
    for name, content in files.items():
        path = data_dir / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
def test_tiny_imagenet_is_read_from_zip_and_folder(tmp_path, packed):
    write_tiny(tmp_path, tiny_imagenet(), packed)
    source = load("tiny-imagenet", data_dir=tmp_path, peers=1, seed=0)
    assert source.shape == (3, 64, 64)
    assert source.class_names == ("bullfrog", "goldfish")  # labels in the order of wnids.txt
    assert source.y_train.tolist() == [1, 0, 0]
    assert source.x_train.mean((1, 2, 3)).round().tolist() == [-1.0, 1.0, 1.0]
    assert source.y_test.tolist() == [1]
    fewer = load("tiny-imagenet(per_class=1)", data_dir=tmp_path, peers=1, seed=0)
    assert fewer.y_train.tolist() == [1, 0]
    with pytest.raises(ConfigError):
        load("tiny-imagenet(per_class=0)", data_dir=tmp_path, peers=1, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val/images/val_0.JPEG": jpeg(0)[:200]}, "val_0.JPEG is not a readable image"),
        ({"val/images/val_0.JPEG": b"text"}, "val_0.JPEG is not a readable image"),
        ({"val/images/val_0.JPEG": jpeg(0, side=32)}, "32x32 pixels, expected 64x64"),
        (
            {"val/val_annotations.txt": b"val_9.JPEG\tn01\t0\t0\t1\t1\n"},
            "1 missing images, such as val/images/val_9",
        ),
        ({"val/val_annotations.txt": b""}, "no validation images"),
        ({"wnids.txt": b"n02\nn\xe91\n"}, "wnids.txt is not text in UTF-8: byte 5 is 0xe9"),
    ],
)
def test_damaged_tiny_imagenet(tmp_path, change, message):
    write_tiny(tmp_path, tiny_imagenet(**change), packed=True)
    with pytest.raises(DataError, match=message):
        load("tiny-imagenet", data_dir=tmp_path, peers=1, seed=0)


def test_truncated_zip(tmp_path):
    write_tiny(tmp_path, tiny_imagenet(), packed=True)
    archive = tmp_path / "tiny-imagenet-200.zip"
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(DataError, match="truncated or damaged"):
        load("tiny-imagenet", data_dir=tmp_path, peers=1, seed=0)


IOT_HEADER = "a,same,b,always,device_category\n"


def write_iot(data_dir: Path, train: str, test: str) -> None:
    folder = data_dir / "iot-device-identification"
    folder.mkdir(exist_ok=True)
    (folder / "iot_device_train.csv").write_text(IOT_HEADER + train)
    (folder / "iot_device_test.csv.gz").write_bytes(gzip.compress((IOT_HEADER + test).encode()))


def test_iot_devices_joins_drops_and_splits(tmp_path):
    rows = [f"{i},7,{-i},1,{'TV' if i % 2 else 'watch'}" for i in range(20)]
    train = "\n".join([*rows[:12], rows[3], "99,0,0,1,water_sensor"]) + "\n"
    write_iot(tmp_path, train, "\n".join([rows[4], *rows[12:]]) + "\n")
    source = load("iot-devices", data_dir=tmp_path, peers=1, seed=0)
    assert source.class_names == ("TV", "watch")
    x, y = torch.cat((source.x_train, source.x_test)), torch.cat((source.y_train, source.y_test))
    # `same` is the first column that is constant once water_sensor is gone; `always` stays, as zeros.
    torch.testing.assert_close(x[:, 1:], torch.stack((-x[:, 0], torch.zeros(20)), 1))
    number = x[:, 0].argsort().argsort()  # rows 0 to 19 have the values 0 to 19
    torch.testing.assert_close(
        x[:, 0].sort().values.diff(), torch.full((19,), float(x[:, 0].std() / 5.91608))
    )
    assert torch.equal(y, 1 - number % 2)
    assert source.x_train[:, 0].mean().abs() < 1e-6
    assert abs(float(source.x_train[:, 0].std(correction=0)) - 1) < 1e-6
    assert torch.bincount(source.y_test).tolist() == [2, 2]  # a quarter of ten, rounded to even


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("1,2,3,4\n", "line 2: 4 values, expected 5"),
        ("1,2,3,4,TV\n1,2,x,4,TV\n", "iot_device_train.csv, line 3: all columns .* must hold numbers: .*'x'"),
        ("1,2,nan,4,TV\n", "iot_device_train.csv, line 2: infinite or missing"),
        ("1,2,3\r4,4,TV\n", "iot_device_train.csv is not a readable CSV file"),
    ],
)
def test_damaged_iot_files(tmp_path, train, message):
    write_iot(tmp_path, train, "1,2,3,4,TV\n")
    with pytest.raises(DataError, match=message):
        load("iot-devices", data_dir=tmp_path, peers=1, seed=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the first line must name the columns"),
        (b"a,b\xff,device_category\n", "is not text in UTF-8: byte 3 is 0xff"),
    ],
)
def test_iot_files_that_are_no_table_are_named(tmp_path, content, message):
    write_iot(tmp_path, "", "1,2,3,4,TV\n")
    path = tmp_path / "iot-device-identification" / "iot_device_train.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load("iot-devices", data_dir=tmp_path, peers=1, seed=0)
    assert str(path) in str(caught.value)
