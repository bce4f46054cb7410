"""Which strategies are predicted, and with the batches of which run the machine is measured."""

import pytest

from manyhands.config.options import configure
from manyhands.experiments.forecast import predict
from manyhands.experiments.forecast.predict import _list_names
from manyhands.strategies import STRATEGIES


def test_all_strategies_by_name():
    assert _list_names("all") == _list_names(["all"]) == _list_names(None) == list(STRATEGIES)


@pytest.mark.parametrize(
    ("given", "size"), [({}, 128), ({"preset": "one-cycle"}, 192), ({"batch_size": 2}, 2)]
)
def test_what_is_measured_beforehand_has_the_batches_of_the_run(given, size, monkeypatch):
    measured = []

    def calibrate(*_, **options):
        measured.append(options["batch_size"])
        raise KeyError

    monkeypatch.setattr(predict, "calibrate", calibrate)
    with pytest.raises(KeyError):
        predict.predict(strategies=["sync", "hogwild"], **given)
    config = configure({**given, "workers": 1})
    with pytest.raises(KeyError):
        predict.choose_workers("cnn", "mnist", given, config, loss=None, say=print)
    assert measured == [size, size]
