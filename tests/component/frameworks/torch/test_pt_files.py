"""Files of torch.save: real ones load, and what would run code does not, whatever it is made of."""

import collections
import copyreg
import io
import os
import pickle
import struct
import tarfile
import zipfile

import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.models.modules import CustomObject
from edl_horovod.models.spec_zoo import FileModel
from tests.later import LATER

if LATER:
    import torch
    from torch import nn

    from edl_horovod.frameworks.torch import file_models
    from edl_horovod.frameworks.torch.pt_files import inspect_pt, load_pt, unsafe_globals

MAGIC = 0x1950A86A20F9469CFC6C
CODE = 240
if LATER:
    LAYERS = nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 8),
        nn.Unflatten(1, (1, 8)),
        nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True),
        nn.GRU(8, 4, batch_first=True),
    )


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.pt"


def zipped(members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def in_archive(content, version="3"):
    """A file as torch.save writes it, with this pickle in it."""
    return zipped({"model/data.pkl": content, "model/version": f"{version}\n"})


def as_legacy(content):
    """A file as PyTorch before 1.6 wrote it, with this pickle in it."""
    before = [pickle.dumps(value, 2) for value in (MAGIC, 1001, {"little_endian": True})]
    return b"".join([*before, content, pickle.dumps([], 2)])


def in_the_second_pickle(content):
    return pickle.dumps(MAGIC, 2) + content + as_legacy(pickle.dumps({}, 2))


class Call:
    """Calls a function where it is unpickled."""

    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


def of_memoised_strings(command):
    strings = text("posix") + b"\x94" + text("system") + b"\x94"
    return b"\x80\x04" + strings + b"00h\x00h\x01\x93" + text(command) + b"\x85R."


def unicode(value):
    """A text as older protocols have it."""
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def of_an_extension(command):
    return b"\x80\x02\x82" + bytes([CODE]) + unicode(command) + b"\x85R."


def in_a_persistent_id(command):
    reduced = b"cposix\nsystem\n" + unicode(command) + b"\x85R"
    return b"\x80\x02(" + unicode("storage") + reduced + b"tQ."


def by_getattr(command):
    imported = b"(cbuiltins\n__import__\n(" + unicode("os") + b"tR" + unicode("system")
    return b"\x80\x02cbuiltins\ngetattr\n" + imported + b"tR(" + unicode(command) + b"tR."


def by_a_dotted_name(command):
    function = text("torch.serialization") + text("os.system") + b"\x93"
    return b"\x80\x04" + function + text(command) + b"\x85R."


def in_a_hook(command):
    module = nn.Linear(1, 1)
    module.register_forward_hook(print)
    module.command = Call(os.system, command)
    return pickle.dumps(module, 2)


HARMFUL = {
    "os.system": lambda command: pickle.dumps(Call(os.system, command), 2),
    "in a dict of tensors": lambda command: pickle.dumps({"w": Call(os.system, command)}, 2),
    "eval": lambda command: pickle.dumps(Call(eval, f"__import__('os').system({command!r})"), 2),
    "exec": lambda command: pickle.dumps(Call(exec, f"import os; os.system({command!r})"), 2),
    "nested": lambda command: pickle.dumps(
        Call(pickle.loads, pickle.dumps(Call(os.system, command))), 2
    ),
    "by getattr": by_getattr,
    "by a dotted name": by_a_dotted_name,
    "memoised strings": of_memoised_strings,
    "the opcode INST": lambda command: f"(S{command!r}\nios\nsystem\n.".encode(),
    "a persistent id": in_a_persistent_id,
    "a hook of a layer": in_a_hook,
    "torch.jit.load": lambda command: pickle.dumps(Call(torch.jit.load, command), 2),
    "torch.load": lambda command: pickle.dumps(Call(torch.load, command), 2),
    "torch.hub": lambda command: pickle.dumps(Call(torch.hub.load, command, "model"), 2),
}
FORMATS = {"archive": in_archive, "legacy": as_legacy, "second pickle": in_the_second_pickle}


@pytest.fixture
def extension():
    """A code that stands for a function in the whole process, and has been looked up before."""
    copyreg.add_extension("posix", "system", CODE)
    pickle.loads(b"\x80\x02\x82" + bytes([CODE]) + b".")
    yield
    copyreg.remove_extension("posix", "system", CODE)


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize("wrap", FORMATS.values(), ids=FORMATS)
def test_nothing_of_an_extension_runs(wrap, file):
    test_nothing_of_a_harmful_file_runs(of_an_extension, wrap, file)


@pytest.mark.parametrize("make", HARMFUL.values(), ids=HARMFUL)
@pytest.mark.parametrize("wrap", FORMATS.values(), ids=FORMATS)
def test_nothing_of_a_harmful_file_runs(make, wrap, file):
    marker = file.with_name("marker")
    content = make(f"touch {marker}")
    if not content.startswith(b"\x80") and wrap is not in_archive:
        content = b"\x80\x02" + content
    file.write_bytes(wrap(content))
    assert file_models.summarize(FileModel(name="x", definition=file)).unsafe
    with pytest.raises(UserCodeError, match="would run"):
        load_pt(file)
    kind = file_models.spec_of(FileModel(name="x", definition=file))
    with pytest.raises(UserCodeError, match="would run"):
        kind().create_model()
    assert not marker.exists()


def test_a_trusted_file_runs(file):
    marker = file.with_name("marker")
    file.write_bytes(in_archive(HARMFUL["os.system"](f"touch {marker}")))
    load_pt(file, is_trusted=True)
    assert marker.exists()


@pytest.mark.parametrize("is_new", [True, False], ids=["archive", "legacy"])
def test_layers_of_pytorch_load_as_they_were(is_new, file):
    layers = LAYERS.eval()
    torch.save(layers, file, _use_new_zipfile_serialization=is_new)
    inspected = inspect_pt(file)
    assert inspected.is_legacy is not is_new
    assert not unsafe_globals(inspected)
    loaded = load_pt(file)
    x = torch.randn(4, 1, 6, 6)
    torch.testing.assert_close(loaded(x), layers(x), rtol=0, atol=0)


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_newer_pickle_loads_only_where_it_is_trusted(protocol, file):
    torch.save(nn.Linear(2, 1), file, pickle_protocol=protocol)
    with pytest.raises(UserCodeError, match=f"protocol {protocol}"):
        load_pt(file)
    assert isinstance(load_pt(file, is_trusted=True), nn.Linear)


def test_every_layer_of_torch_nn_is_known(file):
    kinds = [
        kind
        for kind in vars(nn).values()
        if isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and kind.__module__.startswith("torch.nn.modules.")
    ]
    assert len(kinds) > 140
    named = "".join(f"c{kind.__module__}\n{kind.__qualname__}\n" for kind in kinds)
    file.write_bytes(in_archive(b"\x80\x02(" + named.encode() + b"l."))
    assert not unsafe_globals(inspect_pt(file))


def test_a_layer_that_this_pytorch_lacks_is_told(file):
    file.write_bytes(in_archive(b"\x80\x02ctorch.nn.modules.linear\nQuadratic\n)R."))
    with pytest.raises(UserCodeError, match="such layer"):
        load_pt(file)


def of_a_tar_with_a_link(victim):
    """A tar archive that sets the mode of a file elsewhere where it is unpacked."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        link = tarfile.TarInfo("storages")
        link.type, link.linkname, link.mode = tarfile.LNKTYPE, str(victim), 0o666
        archive.addfile(link)
    return stream.getvalue()


def in_a_tar(pickles, archive):
    """Pickles that are the first member of a tar archive as well, before its other members."""
    member = b"0" + pickles.removeprefix(b"\x80\x02")
    info = tarfile.TarInfo("x")
    info.size = len(member)
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    # For the pickle the header is a string, which the member's first byte drops.
    header[:7] = b"\x80\x02T" + struct.pack("<I", len(header) - 7)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    padding = b"\0" * (-len(member) % tarfile.BLOCKSIZE)
    return bytes(header) + member + padding + archive


@pytest.mark.parametrize("is_trusted", [False, True], ids=["as it is", "trusted"])
def test_a_pickle_that_is_a_tar_archive_too_is_not_unpacked(is_trusted, file):
    victim = file.with_name("victim")
    victim.touch(0o600)
    stream = io.BytesIO()
    model = Own() if is_trusted else nn.Linear(2, 1)
    torch.save(model, stream, _use_new_zipfile_serialization=False)
    file.write_bytes(in_a_tar(stream.getvalue(), of_a_tar_with_a_link(victim)))
    assert tarfile.is_tarfile(file)
    loaded = load_pt(file, is_trusted=is_trusted)
    x = torch.randn(3, 2)
    torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)
    assert victim.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_trusted", [False, True], ids=["as it is", "trusted"])
def test_a_tar_archive_is_refused(is_trusted, file):
    victim = file.with_name("victim")
    victim.touch(0o600)
    file.write_bytes(of_a_tar_with_a_link(victim))
    with pytest.raises(UserCodeError, match=r"torch\.save"):
        load_pt(file, is_trusted=is_trusted)
    assert victim.stat().st_mode & 0o777 == 0o600


def test_a_pickle_before_an_archive_loads_as_it_was_inspected(file):
    stream, model = io.BytesIO(), nn.Linear(2, 1)
    torch.save(model, stream, _use_new_zipfile_serialization=False)
    file.write_bytes(stream.getvalue() + in_archive(of_memoised_strings("touch marker")))
    assert zipfile.is_zipfile(file)
    inspected = inspect_pt(file)
    assert (inspected.is_legacy, unsafe_globals(inspected)) == (True, [])
    assert torch.equal(load_pt(file).weight, model.weight)


def test_two_archives_in_one_are_refused(file):
    """Python reads the last one; PyTorch the first, where the last one's place in itself points."""
    first, last = (in_archive(pickle.dumps({name: 1}, 2)) for name in ("one", "two"))
    file.write_bytes(first + last)
    assert torch.load(file) == {"one": 1}
    with pytest.raises(UserCodeError, match="two archives"):
        inspect_pt(file)


def test_a_pickle_that_changes_a_class_does_not_load(file):
    """The older format compares sources, and a class may have it write a file where they differ."""
    change = b"\x80\x02ccollections\nCounter\n(N}X\x0c\x00\x00\x00dump_patches\x88stb."
    file.write_bytes(as_legacy(change))
    with pytest.raises(UserCodeError, match="be loaded"):
        load_pt(file)
    assert not hasattr(collections.Counter, "dump_patches")


if LATER:

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(2, 1)

        def forward(self, x):
            return self.line(x)


def test_a_class_of_the_user_loads_where_it_is_named(file):
    code = file.with_name("net.py")
    torch.save(Own(), file)
    with pytest.raises(UserCodeError, match=r"run .*Own"):
        load_pt(file)
    code.write_text(
        "from torch import nn\n\nclass Mine(nn.Module):\n"
        "    def forward(self, x):\n        return self.line(x)\n"
    )
    named = CustomObject(key="Own", value="Mine", path=code)
    loaded = load_pt(file, [named], is_trusted=True)
    assert type(loaded).__name__ == "Mine"
    assert loaded(torch.zeros(1, 2)).shape == (1, 1)
    with pytest.raises(UserCodeError, match="'Oven'"):
        load_pt(file, [CustomObject(key="Oven", value="Mine", path=code)])
    with pytest.raises(UserCodeError, match=r"'Min'.*'Mine'"):
        load_pt(file, [CustomObject(key="Own", value="Min", path=code)], is_trusted=True)
    with pytest.raises(UserCodeError, match="trust=model"):
        load_pt(file, [named])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_program_is_told_as_one(file):
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), file)
    with pytest.raises(UserCodeError, match="TorchScript program"):
        load_pt(file)


DAMAGED = {
    "empty": (lambda _: b"", "empty"),
    "text": (lambda _: b"epochs: 3\n", "neither a zip archive nor a pickle"),
    "cut off": (lambda content: content[: len(content) // 2], "damaged"),
    "hdf5": (lambda _: b"\x89HDF\r\n\x1a\n", "HDF5"),
    "other pickle": (lambda _: pickle.dumps([1, 2], 2), "pickle"),
    "other archive": (lambda _: zipped({"config.json": "{}"}), "without data.pkl"),
    "newer": (lambda _: in_archive(pickle.dumps({}, 2), "11"), "newer PyTorch"),
    "damaged pickle": (lambda _: in_archive(b"\x80\x02}q\x01"), "cannot be loaded"),
    "a number": (lambda _: in_archive(pickle.dumps(1, 2)), "model_architecture"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGED.values(), ids=DAMAGED)
def test_files_that_are_not_what_they_claim_are_told(change, message, file):
    torch.save(LAYERS, file)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(UserCodeError, match=message):
        file_models.spec_of(FileModel(name="x", definition=file))().create_model()
