"""Turns are served one after the other, in the order in which they came, whoever gives up; and the switch wakes all."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from ctxstore.errors import ConfigurationError, Interrupted
from ctxstore.runtime.interrupt import Interruption, TurnQueue


def waiting(queue, count):
    """Wait until so many stand in line."""
    until = time.monotonic() + 5
    while len(queue._waiting) != count:
        assert time.monotonic() < until, f"{len(queue._waiting)} are waiting, not {count}"
        time.sleep(0.001)


# -- the queue


def test_threads_are_served_in_the_order_they_came():
    queue, served = TurnQueue(), []
    queue.acquire()

    def work(n):
        queue.acquire()
        served.append(n)
        queue.release()

    threads = []
    for n in range(12):
        threads.append(threading.Thread(target=work, args=(n,)))
        threads[-1].start()
        waiting(queue, n + 1)
    assert served == []
    queue.release()
    for thread in threads:
        thread.join(5)
    assert served == list(range(12))


def test_threads_and_tasks_stand_in_one_line():
    queue, served = TurnQueue(), []
    queue.acquire()

    def thread(n):
        queue.acquire()
        served.append(n)
        queue.release()

    async def task(n):
        await queue.aacquire()
        served.append(n)
        await asyncio.sleep(0)
        queue.release()

    threads = []
    for n in range(8):
        work = (lambda n=n: thread(n)) if n % 2 else (lambda n=n: asyncio.run(task(n)))
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        waiting(queue, n + 1)
    queue.release()
    for one in threads:
        one.join(5)
    assert served == list(range(8))


def test_one_at_a_time_under_load():
    queue, inside, overlaps = TurnQueue(), [], []

    def enter(name):
        inside.append(name)
        if len(inside) > 1:
            overlaps.append(list(inside))

    def thread(n):
        for _ in range(50):
            queue.acquire()
            enter(n)
            time.sleep(0)
            inside.remove(n)
            queue.release()

    async def task(n):
        for _ in range(50):
            await queue.aacquire()
            enter(n)
            await asyncio.sleep(0)
            inside.remove(n)
            queue.release()

    async def tasks(base):
        await asyncio.gather(*(task(base + n) for n in range(4)))

    threads = [threading.Thread(target=thread, args=(n,)) for n in range(4)]
    threads += [threading.Thread(target=lambda n=n: asyncio.run(tasks(n))) for n in (10, 20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
        assert not one.is_alive()
    assert overlaps == []


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_task_that_is_cancelled_in_the_line_leaves_it(victim):
    async def main():
        queue, served = TurnQueue(), []
        await queue.aacquire()

        async def work(n):
            await queue.aacquire()
            served.append(n)
            queue.release()

        tasks = [asyncio.create_task(work(n)) for n in range(3)]
        await asyncio.sleep(0)
        tasks[victim].cancel()
        await asyncio.sleep(0)
        queue.release()
        done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert served == [n for n in range(3) if n != victim]
        assert [isinstance(d, asyncio.CancelledError) for d in done] == [n == victim for n in range(3)]

    asyncio.run(main())


def test_a_task_that_is_cancelled_in_the_moment_it_is_served_passes_its_turn_on():
    async def main():
        queue = TurnQueue()
        await queue.aacquire()
        first = asyncio.create_task(queue.aacquire())
        second = asyncio.create_task(queue.aacquire())
        await asyncio.sleep(0)
        queue.release()  # the first is served, and has not run since
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(second, 5)

    asyncio.run(main())


def test_a_loop_that_ended_while_its_task_waited_holds_nobody_up():
    queue, served, loop = TurnQueue(), [], asyncio.new_event_loop()
    queue.acquire()
    left = []

    def wait_and_go_away():
        left.append(loop.create_task(queue.aacquire()))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    first = threading.Thread(target=wait_and_go_away)
    first.start()
    first.join(5)
    waiting(queue, 1)
    second = threading.Thread(target=lambda: (queue.acquire(), served.append("second"), queue.release()))
    second.start()
    waiting(queue, 2)
    queue.release()
    second.join(5)
    assert served == ["second"]
    left[0]._log_destroy_pending = False
    left[0].get_coro().close()


def test_whoever_holds_the_turn_is_refused_another():
    queue = TurnQueue()
    queue.acquire()
    with pytest.raises(ConfigurationError, match="in the middle of a turn"):
        queue.acquire()
    queue.release()
    queue.acquire()
    queue.release()

    async def main():
        await queue.aacquire()
        with pytest.raises(ConfigurationError, match="in the middle of a turn"):
            await queue.aacquire()
        queue.release()
        await queue.aacquire()
        queue.release()

    asyncio.run(main())


def test_a_wait_that_could_never_end_is_refused():
    """A tool of an async turn that talks without waiting, and one of a sync turn that runs a loop of its own."""
    queue = TurnQueue()

    async def main():
        await queue.aacquire()
        with pytest.raises(ConfigurationError, match="in the middle of a turn"):
            queue.acquire()  # it would block the loop that the turn itself needs
        queue.release()

    asyncio.run(main())
    queue.acquire()
    with pytest.raises(ConfigurationError, match="in the middle of a turn"):
        asyncio.run(queue.aacquire())
    queue.release()


def test_another_task_of_the_loop_that_a_sync_turn_runs_in_may_wait():
    queue = TurnQueue()

    async def main():
        queue.acquire()  # a sync stream that is read in a coroutine
        other = asyncio.create_task(queue.aacquire())
        await asyncio.sleep(0)
        assert not other.done()
        queue.release()
        await asyncio.wait_for(other, 5)
        queue.release()

    asyncio.run(main())


# -- the switch


def test_everyone_registered_is_woken_once_and_who_left_is_not():
    switch, woken = Interruption(), []
    switch.on_interrupt(lambda: woken.append("a"))
    leave = switch.on_interrupt(lambda: woken.append("b"))
    switch.on_interrupt(lambda: woken.append("c"))
    leave()
    leave()  # twice does no harm
    switch.check()
    assert not switch.is_set and woken == []
    switch.set()
    assert switch.is_set and woken == ["a", "c"]
    with pytest.raises(Interrupted):
        switch.check()


def test_who_comes_too_late_is_woken_at_once():
    switch, woken = Interruption(), []
    switch.set()
    switch.on_interrupt(lambda: woken.append("late"))
    assert woken == ["late"]


def test_throwing_it_again_wakes_nobody_twice():
    switch, woken = Interruption(), []
    switch.on_interrupt(lambda: woken.append(1))
    switch.set()
    switch.set()
    assert woken == [1]


def test_one_callback_that_fails_keeps_no_other_asleep():
    switch, woken = Interruption(), []

    def closed():
        raise RuntimeError("Event loop is closed")

    switch.on_interrupt(closed)
    switch.on_interrupt(lambda: woken.append(1))
    switch.set()
    assert woken == [1]


def test_a_wait_ends_when_it_is_thrown_from_another_thread():
    switch = Interruption()
    started = time.monotonic()
    timer = threading.Timer(0.02, switch.set)
    timer.start()
    with pytest.raises(Interrupted):
        switch.wait(30)
    assert time.monotonic() - started < 5
    timer.join()
    Interruption().wait(0)
