"""Block pool and scheduler: blocks are never lost or shared wrongly, everybody gets on, prefixes are computed once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backends.paged.block_pool import BlockPool, block_digests
from backends.paged.scheduler import Scheduler
from backends.paged.sequence import Sequence, SequenceChunk
from backends.paged.step_budget import StepBudget

BLOCK = 4


class Memory:
    """The KV cache of a runner that stores token ids. Reading a chunk shows whether its past is right."""

    def __init__(self, num_blocks: int) -> None:
        self._tokens = [[-1] * BLOCK for _ in range(num_blocks)]

    def copy(self, source: int, target: int) -> bool:
        self._tokens[target] = list(self._tokens[source])
        return True

    def forward(self, chunk: SequenceChunk) -> None:
        blocks = chunk.sequence.blocks
        assert len(blocks) * BLOCK >= chunk.stop
        for position, token in enumerate(chunk.token_ids, chunk.start):
            self._tokens[blocks[position // BLOCK]][position % BLOCK] = token
        known = chunk.sequence.token_ids[: chunk.stop]
        stored = [self._tokens[blocks[position // BLOCK]][position % BLOCK] for position in range(len(known))]
        assert stored == known


class Engine:
    """Scheduler, pool and memory, stepped as a backend does."""

    def __init__(self, num_blocks: int, max_num_seqs: int = 4, *, partial: bool = True, caching: bool = True) -> None:
        self.now = 0.0
        self.pool = BlockPool(num_blocks, clock=lambda: self.now)
        self.scheduler = Scheduler(
            self.pool,
            BLOCK,
            max_num_seqs=max_num_seqs,
            takes_partial_prompts=partial,
            enable_prefix_caching=caching,
        )
        self.memory = Memory(num_blocks)
        self.scheduler.copy_block = self.memory.copy
        self.sequences: dict[str, Sequence] = {}
        self.computed_tokens = 0

    def add(
        self, name: str, prompt: Iterable[int], new: int, first_logit: int = -1, generated: Iterable[int] = ()
    ) -> Sequence:
        prompt = list(prompt)
        known = [*prompt, *generated]
        sequence = Sequence(name, known, len(known) + new, first_logit, prompt_len=len(prompt))
        self.sequences[name] = sequence
        self.scheduler.add(sequence)
        return sequence

    def step(self, budget: int = 8, accepted: int = 0, drafts: Iterable[int] = ()) -> list[SequenceChunk]:
        for sequence in self.sequences.values():
            sequence.draft = list(drafts)
        chunks, preempted = self.scheduler.schedule(budget)
        assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks)
        assert not {id(chunk.sequence) for chunk in chunks}.intersection(map(id, preempted))
        for chunk in chunks:
            self.memory.forward(chunk)
        for chunk in chunks:
            sequence = chunk.sequence
            self.computed_tokens += len(chunk.token_ids)
            right = min(accepted, chunk.num_draft)
            if chunk.samples:
                for token in [
                    *chunk.token_ids[len(chunk.token_ids) - chunk.num_draft :][:right],
                    len(sequence.token_ids) % 7,
                ]:
                    sequence.append(token)
            self.scheduler.computed(chunk, right)
            if len(sequence.token_ids) >= sequence.max_len:
                self.remove(sequence.request_id)
        return chunks

    def remove(self, name: str) -> None:
        self.scheduler.remove(self.sequences.pop(name))

    def cut(self, name: str) -> Sequence:
        """End a sequence that may be continued."""
        sequence = self.sequences[name]
        self.scheduler.keep_end(sequence)
        self.remove(name)
        return sequence

    def run(self, budget: int = 8) -> None:
        for _ in range(1000):
            if not self.sequences:
                return
            assert self.step(budget)
        pytest.fail("sequences do not end")


class AnyOrder(RuleBasedStateMachine):
    """Joins, leaves, steps with any budget and drafts, in a pool that is too small for all."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(num_blocks=12)
        self.count = 0
        self.cut: list[Sequence] = []

    # Two tokens only, so that many prompts begin in the same way.
    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=30),
        new=st.integers(1, 18),
        logits=st.sampled_from([-1, 0]),
    )
    def join(self, prompt: list[int], new: int, logits: int) -> None:
        self.count += 1
        self.engine.add(f"r{self.count}", prompt, new, first_logit=logits)

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data(), failed=st.booleans())
    def leave(self, data: st.DataObject, failed: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.engine.sequences)))
        self.engine.sequences[name].failed = failed
        self.engine.remove(name)

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data())
    def cut_one(self, data: st.DataObject) -> None:
        self.cut.append(self.engine.cut(data.draw(st.sampled_from(sorted(self.engine.sequences)))))

    @precondition(lambda self: self.cut)
    @rule(data=st.data(), behind=st.integers(0, 6), new=st.integers(1, 6))
    def go_on(self, data: st.DataObject, behind: int, new: int) -> None:
        cut = data.draw(st.sampled_from(self.cut))
        generated = cut.token_ids[cut.prompt_len :]
        generated = generated[: max(0, len(generated) - behind)]
        if cut.prompt_len + len(generated) + new <= 48:
            self.count += 1
            self.engine.add(f"r{self.count}", cut.token_ids[: cut.prompt_len], new, generated=generated)

    @rule(budget=st.integers(0, 40), drafts=st.lists(st.integers(0, 9), max_size=6), accepted=st.integers(0, 6))
    def step(self, budget: int, drafts: list[int], accepted: int) -> None:
        chunks = self.engine.step(budget, accepted, drafts)
        assert chunks or not self.engine.sequences

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.engine.now += seconds
        reclaimed = self.engine.pool.reclaimable(60)
        assert not set(reclaimed) & {block for s in self.engine.sequences.values() for block in s.blocks}

    @invariant()
    def every_block_is_used_or_free(self) -> None:
        users = Counter(block for sequence in self.engine.sequences.values() for block in sequence.blocks)
        assert self.engine.pool.num_free == self.engine.pool.num_blocks - len(users)
        assert all(self.engine.pool._users[block] == users[block] for block in range(self.engine.pool.num_blocks))

    def teardown(self) -> None:
        self.engine.run()
        assert self.engine.pool.num_free == self.engine.pool.num_blocks


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_order = AnyOrder.TestCase


@pytest.mark.parametrize("behind", [0, 1, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 9])
def test_a_continued_sequence_computes_one_token(length: int, behind: int) -> None:
    engine = Engine(num_blocks=20)
    sequence = engine.add("first", range(50, 57), new=30)
    while len(sequence.token_ids) < 7 + length + behind:
        engine.step()
    engine.cut("first")
    engine.computed_tokens = 0
    continued = engine.add("second", range(50, 57), new=1, generated=sequence.token_ids[7 : 7 + length])
    engine.step()
    assert engine.computed_tokens == 1
    assert continued.token_ids == [*sequence.token_ids[: 7 + length], (7 + length) % 7]


@pytest.mark.parametrize("prompt", [range(50, 57), range(50, 58)])
def test_what_is_kept_for_a_continuation_is_for_no_prompt(prompt: range) -> None:
    engine = Engine(num_blocks=20)
    sequence = engine.add("first", prompt, new=30)
    while len(sequence.token_ids) < 14:
        engine.step()
    engine.cut("first")
    engine.add("second", sequence.token_ids, new=1)
    engine.computed_tokens = 0
    engine.run()
    assert engine.computed_tokens == 2  # 12 are in full blocks


@pytest.mark.parametrize("budget", [16, 10, 7])
def test_same_prompt_is_computed_once(budget: int) -> None:
    """Also if a step ends within a block."""
    engine = Engine(num_blocks=100, max_num_seqs=8)
    for number in range(8):
        engine.add(f"r{number}", range(41), new=3)
    engine.run(budget)
    # 41 tokens once, then for each other sequence the one token behind its last full block; then 2 more tokens for each.
    assert engine.computed_tokens == 41 + 7 * 1 + 8 * 2


def test_next_turn_of_a_conversation_computes_only_what_is_new() -> None:
    engine = Engine(num_blocks=100)
    first = engine.add("first", range(40), new=8)
    engine.run()
    second = engine.add("second", [*first.token_ids, 7, 8, 9], new=1)
    engine.run()
    assert second.num_cached_tokens == 44  # the last generated token was never computed
    assert engine.scheduler.num_hit_tokens == 44


def test_last_token_is_computed_even_if_all_blocks_are_cached() -> None:
    engine = Engine(num_blocks=100)
    for name in ("first", "second"):
        sequence = engine.add(name, range(8), new=2)
        engine.run()
    assert sequence.num_cached_tokens == 4


@pytest.mark.parametrize("difference", ["cache_key", "token"])
def test_different_beginnings_share_nothing(difference: str) -> None:
    engine = Engine(num_blocks=100)
    engine.add("first", range(40), new=1)
    engine.run()
    second = engine.add("second", [*range(39), 1] if difference == "cache_key" else [9, *range(1, 40)], new=1)
    second.cache_key = b"adapter" if difference == "cache_key" else b""
    engine.run()
    assert second.num_cached_tokens == 0


def test_without_prefix_caching_everything_is_computed() -> None:
    engine = Engine(num_blocks=100, caching=False)
    for name in ("first", "second"):
        engine.add(name, range(40), new=1)
        engine.run()
    assert engine.computed_tokens == 80
    assert engine.scheduler.num_queried_tokens == 0


def test_blocks_of_a_failed_sequence_are_not_found() -> None:
    engine = Engine(num_blocks=100)
    failed = engine.add("failed", range(40), new=2)
    engine.step(budget=40)
    failed.failed = True
    engine.remove("failed")
    second = engine.add("second", range(40), new=1)
    engine.run()
    assert second.num_cached_tokens == 0


def test_prompt_logits_need_all_positions() -> None:
    engine = Engine(num_blocks=100)
    engine.add("first", range(40), new=1)
    engine.run()
    engine.add("second", range(40), new=3, first_logit=0)
    chunks = [*engine.step(budget=30), *engine.step(budget=30), *engine.step(budget=30)]
    assert [chunk.num_logits for chunk in chunks] == [30, 10, 1]
    assert engine.scheduler.num_queried_tokens == 40, "the second prompt is not looked up"


def test_long_prompt_takes_at_most_half_of_the_budget() -> None:
    engine = Engine(num_blocks=100)
    engine.add("long", range(300), new=1)
    engine.step(budget=16)
    short = [engine.add(f"short{n}", range(1000 * n, 1000 * n + 6), new=1) for n in (1, 2)]
    shares = {chunk.sequence.request_id: len(chunk.token_ids) for chunk in engine.step(budget=16)}
    assert shares == {"long": 8, "short1": 6, "short2": 2}
    del short


def test_short_prompts_do_not_starve_a_long_one() -> None:
    engine = Engine(num_blocks=100)
    engine.add("long", range(100), new=1)
    for number in range(100):
        if "long" not in engine.sequences:
            break
        engine.add(f"short{number}", [number] * 16, new=1)
        engine.step(budget=16)
    assert "long" not in engine.sequences
    assert number < 20


@settings(max_examples=60)
@given(
    prompts=st.lists(st.tuples(st.sampled_from([0, 30, 60]), st.integers(9, 80)), min_size=1, max_size=6),
    quiet_steps=st.integers(0, 6),
    max_num_seqs=st.integers(2, 30),
    budget=st.integers(6, 16),
)
@example(prompts=[(0, 60), (60, 40), (60, 10)], quiet_steps=1, max_num_seqs=30, budget=16)
def test_endless_short_prompts_starve_nobody(
    prompts: list[tuple[int, int]], quiet_steps: int, max_num_seqs: int, budget: int
) -> None:
    """Each prompt in turn gets half of the tokens, or the one that is computing the beginning of both.

    In the example the third prompt, which is shorter, starts before the second. Then the short ones come.
    """
    engine = Engine(num_blocks=2000, max_num_seqs=max_num_seqs)
    for number, (common, own) in enumerate(prompts):
        engine.add(f"long{number}", [*range(common), *[number] * own], new=1)
    for step in range(sum(common + own for common, own in prompts) // (budget // 2) + 4 * len(prompts)):
        if step >= quiet_steps:
            for number in range(2):
                engine.add(f"short{step}.{number}", [1000 + 2 * step + number] * 8, new=1)
        engine.step(budget)
    assert not [name for name in engine.sequences if name.startswith("long")]


def test_prompts_for_which_there_is_no_room_do_not_count() -> None:
    engine = Engine(num_blocks=20, max_num_seqs=3)
    for number in range(9):
        engine.add(f"r{number}", [number] * 4, new=9)
    assert engine.scheduler.num_prompts == 3, "as many as may run at once"
    engine.step(budget=100)
    assert (engine.scheduler.num_generating, engine.scheduler.num_prompts) == (3, 0)
    engine = Engine(num_blocks=20, max_num_seqs=9)
    engine.add("first", range(4), new=9)
    engine.step()
    engine.add("large", range(100, 172), new=1)
    engine.add("small", range(200, 204), new=1)
    assert engine.scheduler.num_prompts == 0, "nobody overtakes the one that waits for blocks"


def test_drafts_get_what_prompts_cannot_use() -> None:
    engine = Engine(num_blocks=200, max_num_seqs=1)
    engine.add("first", range(4), new=50)
    engine.step()
    engine.add("second", range(100, 140), new=2)
    assert [chunk.num_draft for chunk in engine.step(budget=8, drafts=[9] * 8)] == [8]


def test_sequence_that_waits_for_blocks_is_not_overtaken_for_ever() -> None:
    engine = Engine(num_blocks=10, max_num_seqs=10)
    for number in range(3):
        engine.add(f"small{number}", [number] * 8, new=2)
    engine.step(budget=100)
    engine.add("large", range(36), new=4)
    for number in range(100):
        if "large" not in engine.sequences:
            break
        engine.add(f"more{number}", [number] * 6, new=2)
        engine.step(budget=100)
    assert "large" not in engine.sequences


def test_first_sequence_gets_on_however_few_blocks_there_are() -> None:
    engine = Engine(num_blocks=6, max_num_seqs=8)
    for number in range(8):
        engine.add(f"r{number}", [number] * 6, new=18)
    first = engine.sequences["r0"]
    engine.step(budget=16)
    for _ in range(20):
        if "r0" in engine.sequences:
            length = len(first.token_ids)
            engine.step(budget=8)
            assert len(first.token_ids) == length + 1
    engine.run()
    assert engine.scheduler.num_preemptions > 0


def test_prompts_that_cannot_be_split_are_computed_whole_beside_generating_ones() -> None:
    engine = Engine(num_blocks=100, partial=False)
    engine.add("first", range(4), new=50)
    engine.step()
    engine.add("second", range(100, 130), new=2)
    engine.add("third", range(200, 230), new=2)
    assert [len(chunk.token_ids) for chunk in engine.step(budget=8)] == [1, 30]
    assert [len(chunk.token_ids) for chunk in engine.step(budget=8)] == [1, 1, 30]


def test_memory_is_given_back_after_a_time_without_use() -> None:
    engine = Engine(num_blocks=10)
    engine.add("first", range(9), new=2)
    engine.run()
    assert len(engine.pool.reclaimable(60)) == 1  # the one that was never full
    engine.now = 59
    assert engine.pool.reclaimable(60) == []
    engine.now = 60
    assert len(engine.pool.reclaimable(60)) == 2
    assert engine.pool.reclaimable(0) == []


def test_memory_that_was_given_back_is_used_last_and_from_the_start() -> None:
    pool = BlockPool(64)
    blocks = pool.allocate(64)
    pool.free(random.Random(1).sample(blocks, 64))
    pool.reclaimable(60)
    first = pool.allocate(8)
    assert first == list(range(8)), "neighbours share pages"
    pool.free(first[2:5])
    assert pool.allocate(4) == [2, 3, 4, 8], "8 takes no memory yet"


def test_least_recently_used_blocks_go_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    digests = block_digests(list(range(12)), BLOCK)
    for block, digest in zip(blocks, digests, strict=True):
        pool.register(block, digest)
    pool.free(blocks)
    pool.allocate(1)
    assert [pool.find(digest) for digest in digests] == [*blocks[:2], None]


def test_digests_depend_on_everything_before() -> None:
    assert block_digests([1, 2, 3, 4, 5, 6, 7, 8], BLOCK)[1] != block_digests([0, 2, 3, 4, 5, 6, 7, 8], BLOCK)[1]
    assert block_digests([1, 2, 3, 4], BLOCK) != block_digests([1, 2, 3, 4], BLOCK, cache_key=b"adapter")
    known = block_digests([1, 2, 3, 4], BLOCK)
    assert block_digests([1, 2, 3, 4, 5, 6, 7, 8], BLOCK, known=known) == block_digests([1, 2, 3, 4, 5, 6, 7, 8], BLOCK)


def test_prefill_takes_as_long_as_the_rest_of_the_step() -> None:
    budget = StepBudget(most=512, least=32)
    assert budget.tokens(0) == 512
    assert budget.tokens(3) == 32
    for _ in range(100):
        budget.observe(0.1, num_generating=3, num_extra_tokens=0)
        budget.observe(0.1 + 0.001 * 64, num_generating=3, num_extra_tokens=64)
    assert 90 <= budget.tokens(3) <= 105
    assert (3 + budget.tokens(3)) % 8 == 0, "few different numbers of tokens"
    assert budget.tokens(0) == 512


def test_prompts_may_take_longer_if_half_as_many_wait_as_generate() -> None:
    budget = StepBudget(most=512, least=8)
    budget.observe(0.064, num_generating=0, num_extra_tokens=64)
    budget.observe(0.1, num_generating=8, num_extra_tokens=0)
    alone = budget.tokens(8, 1)
    assert alone == budget.tokens(8, 2) == budget.tokens(8), "few who wait do not delay many"
    assert 1.9 <= budget.tokens(8, 3) / alone <= 2.2
    assert 3.9 <= budget.tokens(8, 5) / alone <= 4.4
    assert budget.tokens(8, 5) == budget.tokens(8, 80)
    for num_generating in (1, 2, 3):
        assert budget.tokens(num_generating, 1) == budget.tokens(num_generating), "one long prompt"


def test_a_burst_of_prompts_may_take_a_quarter_of_a_second() -> None:
    budget = StepBudget(most=512, least=8)
    budget.observe(0.064, num_generating=0, num_extra_tokens=64)
    budget.observe(0.01, num_generating=1, num_extra_tokens=0)
    assert budget.tokens(1, 1) < 16
    assert 240 <= budget.tokens(1, 32) <= 250


def test_the_pace_of_few_sequences_is_not_that_of_many() -> None:
    budget = StepBudget(most=512, least=8)
    budget.observe(0.064, num_generating=0, num_extra_tokens=64)
    budget.observe(0.02, num_generating=1, num_extra_tokens=0)
    few = budget.tokens(1)
    for _ in range(20):
        budget.observe(0.2, num_generating=32, num_extra_tokens=0)
    assert budget.tokens(1) == few < 24
    assert 190 <= budget.tokens(32) <= 200
    assert 190 <= budget.tokens(20) <= 200, "the closest number known"


def test_a_draft_costs_more_in_a_larger_batch() -> None:
    """One sequence alone leaves the processor much to spare."""
    budget = StepBudget(most=512, least=8)
    assert budget.draft_cost(1) == 0, "not known yet"
    budget.observe(0.064, num_generating=0, num_extra_tokens=64)
    budget.observe(0.02, num_generating=1, num_extra_tokens=0)
    budget.observe(0.04, num_generating=32, num_extra_tokens=0)
    assert budget.draft_cost(1) == pytest.approx(0.05)
    assert budget.draft_cost(32) == pytest.approx(0.8)


def slowest_step(budget: StepBudget, *, decode: float, per_token: float, steps: int) -> float:
    """Let one sequence generate beside an endless prompt. Returns how long the slowest of the last 20 steps takes."""
    seconds = []
    for _ in range(steps):
        tokens = budget.tokens(1)
        seconds.append(decode + per_token * tokens)
        budget.observe(seconds[-1], num_generating=1, num_extra_tokens=tokens)
    return max(seconds[-20:])


def test_a_pause_of_the_machine_does_not_slow_the_steps_after_it() -> None:
    budget = StepBudget(most=512, least=4)
    budget.observe(0.2, num_generating=0, num_extra_tokens=50)
    for seconds in [0.1] * 20 + [3.0]:
        budget.observe(seconds, num_generating=1, num_extra_tokens=0)
    assert slowest_step(budget, decode=0.1, per_token=0.004, steps=20) < 0.3


def test_a_batch_that_shrinks_beside_a_long_prompt_becomes_faster() -> None:
    budget = StepBudget(most=512, least=4)
    budget.observe(0.2, num_generating=0, num_extra_tokens=50)
    for _ in range(20):
        budget.observe(0.5, num_generating=32, num_extra_tokens=0)
    assert slowest_step(budget, decode=0.1, per_token=0.004, steps=300) < 0.25


def test_prompts_of_few_tokens_do_not_count_as_slow_ones() -> None:
    """Most of such a step is spent on reading the weights, however many tokens there are."""
    budget = StepBudget(most=512, least=32)
    budget.observe(0.05 + 0.001 * 64, num_generating=0, num_extra_tokens=64)
    for _ in range(20):
        budget.observe(0.1, num_generating=1, num_extra_tokens=0)
        budget.observe(0.1, num_generating=0, num_extra_tokens=1)
    assert budget.tokens(1) > 32


def test_drafts_share_the_extra_tokens_with_prompts() -> None:
    engine = Engine(num_blocks=200, max_num_seqs=8)
    for number in range(3):
        engine.add(f"r{number}", [number] * 5, new=90)
    engine.step(budget=100)
    drafted = [1, 2, 3, 4, 5, 6]
    assert [chunk.num_draft for chunk in engine.step(budget=8, drafts=drafted)] == [6, 2, 0]
    assert [chunk.num_draft for chunk in engine.step(budget=0, drafts=drafted)] == [0, 0, 0]
    engine.add("prompt", range(50), new=1)
    chunks = engine.step(budget=16, drafts=drafted)
    assert [chunk.num_draft for chunk in chunks] == [6, 2, 0, 0]
    assert len(chunks[-1].token_ids) == 8
