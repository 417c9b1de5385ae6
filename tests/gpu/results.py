"""Rows of results, as JSON and as a table in Markdown."""

import json

MET, MISSED, REPORTED, SKIPPED, FAILED = "met", "missed", "reported", "skipped", "failed"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


class Results:
    def __init__(self, about, say):
        self.about = about
        self.say = say
        self.rows = []

    def add(self, check, what, found, wanted="", verdict=REPORTED, note=""):
        self.rows.append({"check": check, "what": what, "found": found, "wanted": wanted, "verdict": verdict, "note": note})
        self.say(f"  {verdict:8}  {what}: {found}" + (f" (wanted {wanted})" if wanted else "") + (f"; {note}" if note else ""))

    def judge(self, check, what, good, found, wanted, note=""):
        self.add(check, what, found, wanted, MET if good else MISSED, note)

    def skip(self, check, what, why):
        self.add(check, what, "", "", SKIPPED, why)

    def count(self, verdict):
        return sum(row["verdict"] == verdict for row in self.rows)

    def bad(self):
        return self.count(MISSED) + self.count(FAILED)

    def to_json(self):
        return json.dumps({"about": self.about, "rows": self.rows}, indent=1) + "\n"

    def to_markdown(self):
        def cell(text):
            return str(text).replace("|", "\\|").replace("\n", " ")
        lines = [f"{key}: {value}  " for key, value in self.about.items()]
        lines += ["", f"{self.count(MET)} met, {self.count(MISSED)} missed, {self.count(FAILED)} failed, "
                      f"{self.count(SKIPPED)} skipped, {self.count(REPORTED)} reported.", "",
                  "| check | what | found | wanted | verdict | note |", "|---|---|---|---|---|---|"]
        lines += ["| " + " | ".join(cell(row[key]) for key in ("check", "what", "found", "wanted", "verdict", "note")) + " |"
                  for row in self.rows]
        return "\n".join(lines) + "\n"


def put_into_page(page, markdown):
    """Replaces what stands between the two marks of docs/hardware.md."""
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"tests/gpu/run: {page} needs one line '{BEGIN}' and after it one line '{END}'")
    head, tail = text[:text.index(BEGIN) + len(BEGIN)], text[text.index(END):]
    page.write_text(f"{head}\n\n{markdown}\n{tail}", encoding="utf-8")
