"""`edl serve-sql`: run statements in SQL for clients of SQLFlow."""

import sys
from collections.abc import Sequence

from edl_horovod.cli.arguments import VerbParser, config_files, packages_of
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.job import log

_EXAMPLES = """\
settings:
  db=URL       the database of clients that name none; without it the variable EDL_DB, which is the
               place for a URL with a password
  models=DIR   folder of the trained models; else ~/.local/share/edl_horovod/models
  key=value    any other setting of the jobs, as launch.np=2: see edl train --help

The token that clients must send is in --token-file, or in the variable EDL_SQL_TOKEN.

examples:
  edl serve-sql db=sqlite:///hr.db --token-file token
  edl serve-sql db=sqlite:///hr.db --token-file token --host 0.0.0.0 --certificate cert.pem \\
      --key key.pem
"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl serve-sql`.

    Raises:
        ConfigError: A flag or a setting is wrong, or there is no token.
        MissingDependency: The packages of the extras are not installed.
    """
    parser = _parser(verb, summary)
    flags, words = parser.parse_with_settings(argv)
    if flags.cfg:
        raise ConfigError("--cfg shows the settings of one job.", received="--cfg")
    if flags.sessions < 1:
        raise ConfigError("--sessions must be 1 or more.", received={"--sessions": flags.sessions})
    with packages_of("sql,sqlflow", verb=verb):
        from edl_horovod.sql.service import access, server
        from edl_horovod.sql.service.frames import ServiceSettings
        from edl_horovod.sql.settings import read_settings
        from edl_horovod.sql.urls import parse_url
    listen = access.ListenAddress(
        host=flags.host,
        port=flags.port,
        certificate=flags.certificate.read_bytes() if flags.certificate else b"",
        key=flags.key.read_bytes() if flags.key else b"",
        allows_plaintext=flags.without_tls,
    )
    token = access.read_token(flags.token_file)
    files = config_files(flags)
    read = read_settings(words, {}, files)
    databases = access.read_databases(flags.databases)
    for url in (read.db, *databases):
        parse_url(url)
    # What is wrong with the settings is told now, and not by the first training.
    read.check()
    log.setup("edl", level="info")
    server.serve(
        access.Access(token=token, db=read.db, databases=databases),
        listen,
        ServiceSettings(
            models=str(read.models),
            overrides=read.overrides,
            config_dir=files.directory,
            config_name=files.name,
        ),
        max_sessions=flags.sessions,
        on_ready=lambda address: print(f"Statements are run at {address}.", flush=True),
    )
    print("The service has ended.", file=sys.stderr)
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    usage = "[--token-file FILE] [--host HOST] [--port PORT] [--certificate FILE --key FILE]\n"
    usage += f"{' ' * 21}[--without-tls] [--databases FILE] [--sessions N] [--debug]\n"
    usage += f"{' ' * 21}[--config-dir DIR] [--config-name NAME] db=URL [key=value ...]"
    parser = VerbParser(verb, summary, usage, epilog=lambda: _EXAMPLES, config_class=JobConfig)
    parser.add_file("--token-file", help="file with the token that clients must send")
    parser.add_address(host="127.0.0.1", port=50051)
    parser.add_file("--certificate", help="TLS certificate of the server, in PEM")
    parser.add_file("--key", help="private key of the certificate, in PEM")
    parser.add_switch("--without-tls", help="let other machines connect without TLS")
    text = "file with the database URLs that clients may use, one per line"
    parser.add_file("--databases", help=text)
    text = "maximum number of concurrent sessions"
    parser.add_argument("--sessions", type=int, default=4, metavar="N", help=text)
    parser.add_config_files()
    return parser
