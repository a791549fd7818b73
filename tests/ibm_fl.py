"""Sections of the two files of IBM Federated Learning, as its examples have them."""

import copy


def _connection(port):
    return {
        "info": {"ip": "127.0.0.1", "port": port, "tls_config": {"enable": False}},
        "name": "FlaskConnection",
        "path": "ibmfl.connection.flask_connection",
        "sync": False,
    }


AGGREGATOR = {
    "connection": _connection(5000),
    "fusion": {
        "name": "IterAvgFusionHandler",
        "path": "ibmfl.aggregator.fusion.iter_avg_fusion_handler",
    },
    "hyperparams": {
        "global": {
            "max_timeout": 60,
            "num_parties": 3,
            "perc_quorum": 0.75,
            "rounds": 4,
            "termination_accuracy": 0.9,
        },
        "local": {"optimizer": {"lr": 0.01}, "training": {"epochs": 2, "batch_size": 16}},
    },
    "protocol_handler": {
        "name": "ProtoHandler",
        "path": "ibmfl.aggregator.protohandler.proto_handler",
    },
}
PARTY = {
    "aggregator": {"ip": "127.0.0.1", "port": 5000},
    "connection": _connection(8085),
    "data": {
        "info": {"npz_file": "data/party0.npz"},
        "name": "MnistKerasDataHandler",
        "path": "ibmfl.util.data_handlers.mnist_keras_data_handler",
    },
    "local_training": {
        "name": "LocalTrainingHandler",
        "path": "ibmfl.party.training.local_training_handler",
    },
    "model": {
        "name": "KerasFLModel",
        "path": "ibmfl.model.keras_fl_model",
        "spec": {"model_definition": "files/compiled_keras.h5", "model_name": "keras-cnn"},
    },
    "protocol_handler": {
        "name": "PartyProtocolHandler",
        "path": "ibmfl.party.party_protocol_handler",
    },
}


def changed(sections, path, value):
    """The sections with another value at `a.b.c`; None removes it."""
    sections = copy.deepcopy(sections)
    *parents, key = path.split(".")
    section = sections
    for parent in parents:
        section = section.setdefault(parent, {})
    section.pop(key, None)
    if value is not None:
        section[key] = value
    return sections
