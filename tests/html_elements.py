"""What a test looks for on a page of HTML."""

from html.parser import HTMLParser


class Elements(HTMLParser):
    """The tags of a page, what they hold, and its texts."""

    def __init__(self, page):
        super().__init__()
        self.elements = []
        """Each opening tag and its attributes."""
        self.tags = []
        """Each tag with the names of its attributes, and each comment, in their order."""
        self.texts, self.scripts = [], []
        self.feed(page.decode() if isinstance(page, bytes) else page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", ()))

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] == "script" and self.cdata_elem:
            self.scripts.append(data)
        self.texts.append(data)

    def handle_comment(self, data):
        self.tags.append(("comment", ()))

    def handle_decl(self, decl):
        self.tags.append(("declaration", ()))

    @property
    def text(self):
        """All of its texts."""
        return "".join(self.texts)

    def of(self, tag):
        """The attributes of each element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]
