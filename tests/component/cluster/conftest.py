def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write k8s/ as the tests would have it"
    )
