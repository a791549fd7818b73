"""Sessions of statements: what opens one on a database of a test, and runs a text on it."""

from edl_horovod.sql.session import open_session
from edl_horovod.sql.settings import read_settings


def settings_of(url, folder, *words):
    """The settings of a session whose models are in a folder."""
    return read_settings([f"db={url}", f"models={folder}/models", *words], {})


def session_on(database, folder, run_job, tell=lambda sentence: None):
    """A session on a database, whose models are in a folder."""
    return open_session(settings_of(database.url, folder), run_job, tell=tell)


def run(session, text):
    """The results of all statements of a text."""
    return [session.run(statement) for statement in session.parse(text)]
