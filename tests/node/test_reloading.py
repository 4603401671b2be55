"""When a running node reads its data again, and what it says of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from p2pfl.core.core import Course
from p2pfl.errors import UserError
from p2pfl.node import learner_runner
from p2pfl.node.driver import Driver
from p2pfl.node.learner_runner import SETTLED_S, DataNews, LearnerRunner, Reloading, reloading_of
from p2pfl.node.local_rounds import LocalRounds

EVERY_S = 60.0


class Sets:
    def __init__(self, rows):
        self.rows = rows

    def differ_from(self, other):
        return self.rows != other.rows

    def compare_with(self, other):
        return self.rows[:1] == other.rows[:1]


class Reader:
    """A learner whose data are the words of a file."""

    def __init__(self, file, *, names_it=True):
        self.file, self.names_it, self.reads = file, names_it, 0
        self.adopt(Sets(file.read_text().split()))
        self.while_reading = lambda: None

    def data_files(self):
        return (self.file,) if self.names_it else None

    def read_again(self):
        self.reads += 1
        words = self.file.read_text().split()
        if "broken" in words:
            raise UserError("this word is not allowed", file=self.file, value="broken")
        if "huge" in words:
            raise MemoryError("no room")
        self.while_reading()
        return Sets(words)

    def adopt(self, found):
        self.data_sets = found
        self.samples = len(found.rows)


class Site:
    """A node's file and its clock."""

    def __init__(self, file, *, names_it=True):
        self.file, self.now = file, 0.0
        file.write_text("a b c")
        self.learner = Reader(file, names_it=names_it)
        self.reloading = Reloading(self.learner, EVERY_S, clock=lambda: self.now)

    def look(self, after_s=0.0):
        self.now += after_s
        return self.reloading.look()

    def settle(self):
        """From one look to the next, and until a file counts as whole."""
        assert self.look(EVERY_S) is None
        return self.look(SETTLED_S)


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path / "mine.txt")
    assert site.settle() is None, "what the start read is read once more, for it may have changed meanwhile"
    return site


def test_rows_that_come_are_learned_from_once_the_file_has_settled(site):
    site.file.write_text("a b c d e")
    assert site.look(EVERY_S - SETTLED_S - 1) is None
    assert site.learner.samples == 3
    news = site.settle()
    assert news == DataNews("3 to 5 samples")
    assert news.counts == news.text
    assert site.learner.samples == 5


def test_a_file_that_has_not_changed_is_not_read(site):
    reads = site.learner.reads
    assert [site.look(EVERY_S) for _ in range(5)] == [None] * 5
    assert site.learner.reads == reads


def test_a_file_that_is_being_written_is_left_alone(site):
    reads, text = site.learner.reads, "a b c"
    site.look(EVERY_S - SETTLED_S)
    for _ in range(5):
        text += " d"
        site.file.write_text(text)
        assert site.look(SETTLED_S) is None
    assert (site.learner.reads, site.learner.samples) == (reads, 3)
    assert site.look(SETTLED_S) == DataNews("3 to 8 samples")


def test_what_was_read_while_the_file_changed_is_not_taken(site):
    site.file.write_text("a b c d")
    site.learner.while_reading = lambda: site.file.write_text("a b c d e f")
    assert site.settle() is None
    assert site.learner.samples == 3
    site.learner.while_reading = lambda: None
    assert site.look(SETTLED_S) == DataNews("3 to 6 samples")


@pytest.mark.parametrize(
    ("content", "reason"), [("a broken", "this word is not allowed"), ("huge", "MemoryError: no room")]
)
def test_what_cannot_be_used_is_told_once_and_the_data_of_before_stay(site, content, reason):
    site.file.write_text(content)
    news = site.settle()
    assert news.refused
    assert reason in news.text
    assert news.text.endswith("the node goes on with the 3 samples that it has")
    assert [site.look(EVERY_S) for _ in range(3)] == [None] * 3
    assert site.learner.samples == 3
    site.file.write_text("a b c")
    settled = site.settle()
    assert settled == DataNews("3 to 3 samples"), "so that the alarm ends"
    assert settled.counts == ""
    site.file.write_text(content)
    assert site.settle().refused, "it is news again"


def test_a_file_that_has_gone_is_refused_until_it_is_back(site):
    site.file.unlink()
    assert "No such file" in site.settle().text
    site.file.write_text("a b c d")
    assert site.settle() == DataNews("3 to 4 samples")


def test_fewer_rows_are_taken_too_and_a_test_set_that_is_another_one_is_named(site):
    site.file.write_text("z")
    news = site.settle()
    assert news.text.startswith("3 to 1 samples; rows of the test set are others than before")


def test_a_task_that_does_not_name_its_files_is_read_each_time_and_told_of_when_it_differs(tmp_path):
    site = Site(tmp_path / "mine.txt", names_it=False)
    assert site.look(EVERY_S - 1) is None
    assert site.learner.reads == 0
    assert [site.look(EVERY_S) for _ in range(2)] == [None] * 2
    assert site.learner.reads == 2
    site.file.write_text("a b c d")
    assert site.look(EVERY_S) == DataNews("3 to 4 samples")
    site.file.write_text("broken")
    assert site.look(EVERY_S).refused
    assert site.look(EVERY_S) is None


def test_without_reload_s_a_node_never_looks():
    assert reloading_of(SimpleNamespace(), None) is None
    assert LearnerRunner(SimpleNamespace(), 0).renew_data() is None


def test_losses_of_other_data_are_not_compared(site):
    shop = LearnerRunner(site.learner, 0, reloading=site.reloading)
    shop.figures.losses.trained(1.0)
    site.look(EVERY_S)
    site.file.write_text("broken")
    site.settle()
    assert len(shop.figures.losses.own.latest) == 1
    site.file.write_text("a b c d")
    site.look(EVERY_S)
    site.now += learner_runner.SETTLED_S
    assert shop.renew_data() is not None
    assert len(shop.figures.losses.own.latest) == 0


async def test_refused_data_are_an_alarm_until_data_were_read_again():
    local = LocalRounds(SimpleNamespace(), LearnerRunner(SimpleNamespace(), 0), on_measure=int)
    driver = Driver(Course(), SimpleNamespace(), local, name_of=str)
    local._tell_of_data(DataNews("line 3: no number", refused=True))
    assert driver.feed.kinds == ["data-refused"]
    local._tell_of_data(DataNews("180 to 240 samples"))
    assert driver.feed.kinds == []
    assert [(event.kind, event.wrong) for event in driver.feed.events] == [
        ("data-refused", True),
        ("data-reloaded", False),
    ]
