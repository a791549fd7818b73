"""Label and field selectors, as far as a path's query may have them."""

import re

REQUIREMENT = re.compile(
    r"\s*(?:(?P<key>[\w./-]+)\s+(?P<op>in|notin)\s+\((?P<set>[^)]*)\)"
    r"|(?P<eq_key>[\w./-]+)\s*(?P<eq>==|=|!=)\s*(?P<value>[^,]*)"
    r"|(?P<not>!?)(?P<there>[\w./-]+))\s*(?:,|$)"
)


def matches_labels(selector: str, labels: dict) -> bool:
    position = 0
    while position < len(selector):
        found = REQUIREMENT.match(selector, position)
        if found is None:
            raise ValueError(f"unable to parse requirement: {selector[position:]}")
        if not _holds(found, labels):
            return False
        position = found.end()
    return True


def _holds(found: re.Match, labels: dict) -> bool:
    if key := found["key"]:
        is_in = labels.get(key) in [value.strip() for value in found["set"].split(",")]
        return is_in == (found["op"] == "in")
    if key := found["eq_key"]:
        return (labels.get(key) == found["value"].strip()) == (found["eq"] != "!=")
    return (found["there"] in labels) != bool(found["not"])


def matches_fields(selector: str, item: dict) -> bool:
    for requirement in filter(None, selector.split(",")):
        found = re.fullmatch(r"([\w.]+)(==|=|!=)(.*)", requirement)
        if found is None:
            raise ValueError(f"unable to parse requirement: {requirement}")
        value = item
        for key in found[1].split("."):
            value = value.get(key, "") if isinstance(value, dict) else ""
        if (str(value or "") == found[3]) != (found[2] != "!="):
            return False
    return True
