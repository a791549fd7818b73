import re
import sys
from pathlib import Path

import pytest

from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.models.lookup import list_parameters
from edl_horovod.models.modules import load_function
from edl_horovod.models.zoo import list_definitions, load_spec
from edl_horovod.spec import Mode

SPEC = """
from edl_horovod.spec import ElasticDLSpec

class {name}(ElasticDLSpec):
    def create_model(self, hidden_units=(1,)):
        return hidden_units
    def create_dataset(self, dataset, mode):
        return dataset, mode
    def create_loss(self, outputs=None, labels=None):
        return outputs
    def create_optimizer(self, lr=0.1):
        return lr
"""
NO_MODEL = SPEC.replace("create_model", "create_modem")
MNIST = SPEC.format(name="Mnist")


pytestmark = pytest.mark.usefixtures("imports_end_with_the_test")


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


@pytest.fixture
def load(tmp_path):
    def load(model_def: str, **params: object):
        return load_spec(str(tmp_path), model_def, params=params)

    return load


@pytest.fixture
def mnist(write):
    """Write a zoo whose one file has the spec `Mnist`, between other texts."""

    def mnist(before: str = "", after: str = "", spec: str = SPEC) -> Path:
        return write("mnist.py", before + spec.format(name="Mnist") + after)

    return mnist


def test_a_program_that_forbids_an_import_loads_models(write, load, monkeypatch):
    monkeypatch.setitem(sys.modules, "a_module_nobody_may_import", None)
    write("m.py", SPEC.format(name="A"))
    assert load("m.A").symbol == "A"


def test_symbol_of_a_file_in_a_folder_beside_a_file_of_the_same_name(write, load):
    write("regressor.py", SPEC.format(name="DNN"))
    write("regressor/wide_and_deep.py", SPEC.format(name="MagicalWAD"))
    assert load("regressor.wide_and_deep.MagicalWAD").symbol == "MagicalWAD"
    assert load("regressor.DNN").symbol == "DNN"
    assert load("regressor.wide_and_deep").full_name == "regressor.wide_and_deep.MagicalWAD"


@pytest.mark.parametrize(
    ("files", "model_def", "file", "symbol"),
    [
        ({"mnist.py": MNIST}, "mnist", "mnist.py", "Mnist"),
        (
            {
                "mnist/helpers.py": "WIDTH = 3\n",
                "mnist/mnist.py": f"from helpers import WIDTH\n{MNIST}",
            },
            "mnist",
            "mnist/mnist.py",
            "Mnist",
        ),
        (
            {"regressor.py": SPEC.format(name="DNN") + SPEC.format(name="Other")},
            "regressor.DNN",
            "regressor.py",
            "DNN",
        ),
        (
            {"fintech/credit.py": SPEC.format(name="Mine"), "fintech/x.py": MNIST},
            "fintech.Mine",
            "fintech/credit.py",
            "Mine",
        ),
        # A file that cannot mean the symbol is not run.
        (
            {"fintech/credit.py": SPEC.format(name="Mine"), "fintech/x.py": "raise RuntimeError\n"},
            "fintech.Mine",
            "fintech/credit.py",
            "Mine",
        ),
        # A spec that another file of the folder imports is not ambiguous.
        (
            {"mine/__init__.py": "from mine.credit import Mnist\n", "mine/credit.py": MNIST},
            "mine.Mnist",
            "mine/credit.py",
            "Mnist",
        ),
        # Imported and abstract specs do not count.
        (
            {
                "base.py": NO_MODEL.format(name="Base") + SPEC.format(name="Whole"),
                "mnist.py": "from base import Base, Whole\n\nclass Mnist(Whole):\n    pass\n",
            },
            "mnist",
            "mnist.py",
            "Mnist",
        ),
    ],
    ids=["file", "folder", "symbol", "symbol in folder", "not run", "imported", "abstract"],
)
def test_a_name_gives_the_one_spec_that_it_can_mean(
    write, load, tmp_path, files, model_def, file, symbol
):
    for name, text in files.items():
        write(name, text)
    loaded = load(model_def)
    assert type(loaded.spec).__name__ == loaded.symbol == symbol
    assert (loaded.source_file, loaded.zoo) == (tmp_path / file, tmp_path)


def test_what_is_ambiguous_is_listed(write, load):
    write("fintech/a.py", SPEC.format(name="Credit"))
    write("fintech/b.py", SPEC.format(name="Credit"))
    write("mnist.py", SPEC.format(name="Small") + SPEC.format(name="Large"))
    for model_def, names in (
        ("fintech.Credit", ("fintech.a.Credit", "/a.py", "fintech.b.Credit", "/b.py")),
        ("mnist", ("mnist.Large", "mnist.py", "mnist.Small")),
    ):
        with pytest.raises(UserCodeError, match="2 models") as caught:
            load(model_def)
        assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize(
    ("file", "text", "model_def", "nearest"),
    [
        ("regressor.py", SPEC.format(name="DNN"), "regressor.DNM", "regressor.DNN"),
        # The nearest one is found by its class alone, and is always a model.
        ("a/b.py", SPEC.format(name="WideAndDeep"), "WidenDeep", "a.b.WideAndDeep"),
        ("a.py", SPEC.format(name="Small") + "Smalls = 3\n", "a.Smalls", "a.Small"),
    ],
)
def test_a_missing_model_is_named_with_the_nearest(write, load, file, text, model_def, nearest):
    write(file, text)
    with pytest.raises(UserCodeError, match=f"mean '{re.escape(nearest)}'") as caught:
        load(model_def)
    assert model_def in str(caught.value)
    assert str(caught.value).count(nearest) >= 2, "it is listed, too"


@pytest.mark.parametrize("model_def", ["../evil", "a/b.C", "a..b", "", "a.b()"])
def test_a_name_that_is_not_dotted_is_refused(model_def, load):
    with pytest.raises(ConfigError, match="by dots"):
        load(model_def)


def test_a_zoo_that_is_no_directory_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="model_zoo="):
        load_spec(str(tmp_path / "none"), "a", params={})


def test_a_spec_may_leave_loss_and_optimizer_to_its_model_but_a_whole_one_is_preferred(write, load):
    text = SPEC.format(name="DNN")
    without = text.replace("create_loss", "lose").replace("create_optimizer", "optimize")
    write("own.py", without)
    write("both.py", without.replace("DNN", "Other") + text)
    loaded = load("own")
    assert not loaded.overrides_method("create_loss")
    assert loaded.parts["loss"] == "own.DNN"
    assert load("both").symbol == "DNN"


def test_a_syntax_error_names_file_and_line(write, load):
    file = write("broken.py", "x = 1\nclass Broken(:\n")
    for model_def in ("broken", "broken.Broken"):
        with pytest.raises(UserCodeError, match=rf"{file}:2") as caught:
            load(model_def)
        assert isinstance(caught.value.__cause__, SyntaxError)


@pytest.mark.parametrize(
    ("text", "model_def", "message"),
    [
        ("Mnist = 3\n", "mnist.Mnist", "extends ElasticDLSpec"),
        (NO_MODEL.format(name="Mnist"), "mnist.Mnist", r"mnist\.py .*create_model"),
        (NO_MODEL.format(name="Mnist"), "mnist", r"mnist\.py .*create_model"),
        (f"x = 1\nx.y\n{MNIST}", "mnist", "{file}:2: AttributeError: .*'y'"),
        (f"import no_such_package\n{MNIST}", "mnist", r"no_such_package.*requirements\.txt"),
        (
            f"{MNIST}    def __init__(self):\n        raise KeyError('no')\n",
            "mnist",
            r"Mnist .*mnist\.py:\d+: KeyError: 'no'",
        ),
    ],
    ids=["no spec", "no model", "no model in a file", "import", "package", "constructor"],
)
def test_a_file_without_a_usable_model_says_why(write, load, text, model_def, message):
    file = write("mnist.py", text)
    with pytest.raises(UserCodeError, match=message.format(file=file)):
        load(model_def)


@pytest.mark.parametrize(
    ("hiding", "line", "hint"),
    [
        ("yaml/loader_of_mine.py", "import yaml.nodes\n", ""),
        ("numpydoc/__init__.py", "import numpydoc.docscrape\n", "define it"),
        ("hydra.py", "from hydra import compose\n", "'hydra'"),
        ("omegaconf/__init__.py", "import omegaconf.errors\n", "'omegaconf'"),
    ],
)
def test_a_package_that_the_zoo_itself_hides_is_not_to_be_installed(
    write, mnist, load, monkeypatch, hiding, line, hint
):
    top = hiding.partition("/")[0].removesuffix(".py")
    for name in [name for name in sys.modules if name.partition(".")[0] == top]:
        monkeypatch.delitem(sys.modules, name)
    place = write(hiding, "")
    mnist(line)
    if not hint:  # A folder of files hides no package.
        assert load("mnist").symbol == "Mnist"
        return
    with pytest.raises(UserCodeError, match=hint) as caught:
        load("mnist")
    assert "requirements.txt" not in str(caught.value)
    assert str(place) in str(caught.value)


def test_a_file_that_failed_can_be_mended_and_loaded(mnist, load):
    mnist("1 / 0\n")
    with pytest.raises(UserCodeError):
        load("mnist")
    mnist()
    assert load("mnist").symbol == "Mnist"


def test_a_file_runs_once_however_it_is_reached(write, load, tmp_path):
    text = f"with open({str(tmp_path / 'runs')!r}, 'a') as runs:\n    runs.write('x')\n"
    write("fintech/base.py", text + SPEC.format(name="Base"))
    write("fintech/credit.py", "import base\nimport fintech.base\n\nclass Credit(base.Base): ...\n")
    load("fintech.Base")
    credit = load("fintech.Credit")
    again = load("fintech.base")
    assert (tmp_path / "runs").read_text() == "x"
    assert isinstance(credit.spec, type(again.spec))


def test_siblings_of_two_zoos_are_not_mixed(write, tmp_path):
    for zoo in ("one", "two"):
        write(f"{zoo}/helpers.py", f"name_of_zoo = {zoo!r}\n")
        write(f"{zoo}/mnist.py", "from helpers import name_of_zoo\n" + MNIST)
    for zoo in ("one", "two", "one"):
        loaded = load_spec(str(tmp_path / zoo), "mnist", params={})
        assert loaded.module.name_of_zoo == zoo


def test_a_sibling_can_be_imported_when_a_method_runs(write, mnist, load):
    write("late.py", "VALUE = 7\n")
    mnist(spec=SPEC.replace("return lr", "import late\n        return late.VALUE"))
    assert load("mnist").spec.create_optimizer() == 7


def test_params_go_to_the_constructor_that_declares_them(mnist, load):
    mnist(after="    def __init__(self, width, context=None):\n        self.width = width\n")
    assert load("mnist", width=3).spec.width == 3


def test_params_go_to_keyword_arguments_of_the_constructor(mnist, load):
    mnist(after="    def __init__(self, context=None, **params):\n        self.params = params\n")
    loaded = load("mnist", width=3, lr=0.5)
    assert loaded.spec.params == {"width": 3, "lr": 0.5}
    assert loaded.spec.create_optimizer() == 0.5


def test_a_whole_number_is_a_float_where_the_default_is_one_and_as_a_learning_rate(mnist, load):
    method = "    def __init__(self, scale=0.5, size=2):\n        self.got = (scale, size)\n"
    mnist(after=method, spec=SPEC.replace("lr=0.1", "lr=None"))
    spec = load("mnist", scale=3, size=4, learning_rate=50).spec
    assert [*map(type, spec.got), type(spec.create_optimizer())] == [float, int, float]


def test_params_go_to_the_methods_that_declare_them(mnist, load):
    mnist()
    spec = load("mnist", hidden_units=[10, 100]).spec
    assert spec.create_model() == [10, 100]
    assert spec.create_dataset("data", Mode.TRAINING) == ("data", Mode.TRAINING)


def test_a_param_that_nothing_declares_or_that_the_framework_gives_is_refused(mnist, load):
    mnist()
    with pytest.raises(ConfigError, match="declares: hidden_units, lr") as caught:
        load("mnist", hidden_unit=[10])
    assert "'hidden_units'" in caught.value.hint
    with pytest.raises(ConfigError, match=r"params\.outputs=3"):
        load("mnist", outputs=3)


def test_the_context_reaches_the_constructor(mnist, tmp_path):
    mnist(after="    def __init__(self, context):\n        self.context = context\n")
    loaded = load_spec(str(tmp_path), "mnist", params={}, context={"worker_id": "w1"})
    assert loaded.spec.context == {"worker_id": "w1"}


def test_definitions_are_listed_without_running_anything(write, tmp_path):
    write("base.py", "raise RuntimeError\n" + NO_MODEL.format(name="Base"))
    write("mnist/mnist.py", "class Mnist(base.Base):\n    def create_model(self): ...\n")
    write("broken.py", "class (\n")
    assert list_definitions(tmp_path) == ["mnist.mnist.Mnist"]


def test_parameters_are_listed_with_those_of_the_bases(write, tmp_path):
    write("base.py", "raise RuntimeError\n" + SPEC.format(name="Base"))
    methods = "def create_model(self, *, depth=1): ...\n    def layer(self, width): ..."
    write("mnist.py", f"class Mnist(base.Base):\n    {methods}\n")
    names = list_parameters(tmp_path, "mnist")
    assert names is not None
    assert {"depth", "hidden_units", "lr"} <= names
    assert not names & {"self", "width"}


@pytest.mark.parametrize(
    "text",
    [
        "class Mnist(base.Base):\n    def __init__(self, **more): ...\n",
        "class Mnist(base.Base, elsewhere.Thing):\n    pass\n",
        "class Mnist(base.Base):\n    pass\nclass Other(base.Base):\n    pass\n",
    ],
    ids=["any name", "a base elsewhere", "two models"],
)
def test_files_that_do_not_tell_the_parameters(write, tmp_path, text):
    write("base.py", SPEC.format(name="Base"))
    write("mnist.py", text)
    assert list_parameters(tmp_path, "mnist") is None


def test_a_function_is_found_beside_a_spec_or_alone(write, mnist, tmp_path):
    mnist(after="\ndef prepare(filename):\n    return b''\n")
    write("alone/prepare.py", "def prepare(filename):\n    return b'x'\n")
    assert load_function(str(tmp_path), "mnist.Mnist", "prepare")("f") == b""
    assert load_function(str(tmp_path), "alone", "prepare")("f") == b"x"
    with pytest.raises(UserCodeError, match=r"mnist\.py .*'other'"):
        load_function(str(tmp_path), "mnist", "other")
