"""Label and field selectors, as far as a path's query may have them."""

import re

REQUIREMENT = re.compile(
    r"\s*(?:(?P<key>[\w./-]+)\s+(?P<op>in|notin)\s+\((?P<set>[^)]*)\)"
    r"|(?P<eq_key>[\w./-]+)\s*(?P<eq>==|=|!=)\s*(?P<value>[^,]*)"
    r"|(?P<not>!?)(?P<label>[\w./-]+))\s*(?:,|$)"
)


def matches_labels(selector: str, labels: dict) -> bool:
    position = 0
    while position < len(selector):
        match = REQUIREMENT.match(selector, position)
        if match is None:
            raise ValueError(f"unable to parse requirement: {selector[position:]}")
        if not _holds(match, labels):
            return False
        position = match.end()
    return True


def _holds(match: re.Match, labels: dict) -> bool:
    if key := match["key"]:
        is_in = labels.get(key) in [value.strip() for value in match["set"].split(",")]
        return is_in == (match["op"] == "in")
    if key := match["eq_key"]:
        return (labels.get(key) == match["value"].strip()) == (match["eq"] != "!=")
    return (match["label"] in labels) != bool(match["not"])


def matches_fields(selector: str, item: dict) -> bool:
    for requirement in filter(None, selector.split(",")):
        match = re.fullmatch(r"([\w.]+)(==|=|!=)(.*)", requirement)
        if match is None:
            raise ValueError(f"unable to parse requirement: {requirement}")
        value = item
        for key in match[1].split("."):
            value = value.get(key, "") if isinstance(value, dict) else ""
        if (str(value or "") == match[3]) != (match[2] != "!="):
            return False
    return True
