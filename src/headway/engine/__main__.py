"""``python -m headway.engine VERB``: the only way from the desk to torch. One line of JSON or records out, errors as a map."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from headway.base.errors import CheckpointRefused, DamagedData, HeadwayError, RunError, SilentCorruption
from headway.base.owner import end_with


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; the exit code is that of the error's kind."""
    options = _parser().parse_args(arguments)
    if options.owner is not None:
        end_with(options.owner)
    try:
        return VERBS[options.verb](options)
    except HeadwayError as error:
        if options.verb == "train":
            _leave_error(options, error)
        else:
            print(json.dumps(_described(error)))
        _say(f"{error.label}: {error}")
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headway.engine", description=__doc__)
    parser.add_argument("--owner", type=int, default=None, metavar="PID", help="the process that asks: end when it has ended")
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="train one segment of a run (started by the supervisor)")
    train.add_argument("run", type=Path)
    train.add_argument("--segment", type=int, required=True)
    train.add_argument("--rank", type=int, default=0)
    train.add_argument("--world", type=int, default=1, help="processes of this segment")
    train.add_argument("--meeting", default=None, help="file, or tcp://address:port/name, through which they find each other")
    sample = verbs.add_parser("sample", help="decode prompts with a checkpoint of a run")
    sample.add_argument("run", type=Path)
    sample.add_argument("--checkpoint", default=None, help="name under checkpoints/; default: the newest that verifies")
    sample.add_argument("--prompts-json", required=True, help='{"prompts": [...], "tokens": n}; - reads standard input')
    calibrate = verbs.add_parser("calibrate", help="measure this machine's speed on the shapes of a spec")
    calibrate.add_argument("spec", type=Path)
    calibrate.add_argument("--seconds", type=float, default=6.0)
    calibrate.add_argument("--threads", type=int, required=True)
    calibrate.add_argument("--micro-batch-tokens", type=int, required=True)
    convert = verbs.add_parser("convert", help="write a checkpoint in another format")
    convert.add_argument("source")
    convert.add_argument("destination", type=Path)
    convert.add_argument("--to", required=True)
    convert.add_argument("--from", dest="source_format", default=None)
    convert.add_argument("--shard-bytes", type=int, required=True)
    convert.add_argument("--step", type=int, default=None)
    convert.add_argument("--dtype", default=None)
    trials = verbs.add_parser("mup-trials", help="train the trials of a sweep that have no record yet")
    trials.add_argument("plan", type=Path)
    trials.add_argument("out", type=Path)
    trials.add_argument("data", type=Path)
    trials.add_argument("--workers", type=int, default=0, help="trials side by side; 0: as many as there are cores")
    check = verbs.add_parser("mup-check", help="measure coordinates over widths and steps")
    check.add_argument("request", type=Path)
    prove = verbs.add_parser("prove", help="measure layouts against one process: records, one a line, the evidence last")
    prove.add_argument("request", type=Path)
    dryrun = verbs.add_parser("dryrun", help="one rank's step at its real size, without the others and without values")
    dryrun.add_argument("request", type=Path)
    store = verbs.add_parser("store", help="serve the store through which ranks of several nodes meet, until standard input ends")
    store.add_argument("--address", required=True)
    store.add_argument("--port", type=int, required=True)
    store.add_argument("--descriptor", type=int, required=True, help="of the listening socket")
    doctor = verbs.add_parser("doctor", help="known-answer products on every device and in every number format")
    doctor.add_argument("--seconds", type=float, default=4.0)
    verbs.add_parser("bench-input", help="measure whether input or step limits a run: a request on standard input")
    return parser


def _train(options: argparse.Namespace) -> int:
    """One of several ranks leaves whatever ends it where the supervisor looks, and goes at once: the others wait for it."""
    if options.world == 1:
        return _train_rank(options)
    try:
        return _train_rank(options)
    except BaseException as error:
        told = error if isinstance(error, HeadwayError) else _unexpected(error)
        _leave_error(options, told)
        _say(f"{told.label}: {told}\n{traceback.format_exc()}")
        os._exit(told.exit_code)


def _train_rank(options: argparse.Namespace) -> int:
    from headway.parallel.group import Member
    from headway.train.loop import train
    from headway.train.setup import set_up
    from headway.train.stop import StopRequest

    stop = StopRequest().on_signals().on_owner_gone()
    member = Member(options.rank, options.world, options.meeting) if options.world > 1 else None
    run = set_up(options.run, options.segment, stop, member=member)
    try:
        train(run)
    except BaseException:
        run.close(comes_back=True)
        raise
    run.close(comes_back=False)
    return 0


def _sample(options: argparse.Namespace) -> int:
    from headway.train.sample import sample_run

    text = sys.stdin.read() if options.prompts_json == "-" else Path(options.prompts_json).read_text()
    request = json.loads(text)
    print(json.dumps(sample_run(options.run, options.checkpoint, request["prompts"], request["tokens"]), ensure_ascii=False))
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from headway.base.files import read_json
    from headway.recipe.spec import Spec
    from headway.train.calibrate import calibrate

    spec = Spec.from_json(read_json(options.spec, "spec"))
    result = calibrate(spec, seconds=options.seconds, threads=options.threads, micro_batch_tokens=options.micro_batch_tokens)
    print(json.dumps(result))
    return 0


def _convert(options: argparse.Namespace) -> int:
    from headway.checkpoint.convert.convert import Request, convert

    asked = {key: value for key, value in vars(options).items() if key not in ("verb", "owner")}
    print(json.dumps(convert(Request(**asked))))
    return 0


def _mup_trials(options: argparse.Namespace) -> int:
    from headway.train.trials import run_trials

    workers = options.workers or len(os.sched_getaffinity(0))
    print(json.dumps(run_trials(options.plan, options.out, options.data, workers)))
    return 0


def _mup_check(options: argparse.Namespace) -> int:
    from headway.train.coordinates import check_request

    print(json.dumps(check_request(options.request)))
    return 0


def _prove(options: argparse.Namespace) -> int:
    from headway.base.files import read_json
    from headway.recipe.spec import Spec
    from headway.train.prove.proof import Request, prove

    asked = read_json(options.request, "request")
    request = Request(**asked | {"spec": Spec.from_json(asked["spec"]), "layouts": tuple(asked["layouts"])})
    for record in prove(request):
        print(json.dumps(record), flush=True)
    return 0


def _dryrun(options: argparse.Namespace) -> int:
    from headway.base.files import read_json
    from headway.parallel.mesh import Axes
    from headway.recipe.spec import Spec
    from headway.train.dryrun.run import Request, dry_run

    asked = read_json(options.request, "request")
    print(json.dumps(dry_run(Request(**asked | {"spec": Spec.from_json(asked["spec"]), "axes": Axes.of(asked["axes"])}))))
    return 0


def _bench_input(options: argparse.Namespace) -> int:
    from headway.train.bench_input import Request, bench_input

    print(json.dumps(bench_input(Request.of(json.load(sys.stdin)))))
    return 0


def _store(options: argparse.Namespace) -> int:
    from headway.parallel.group import serve_store

    serve_store(options.address, options.port, options.descriptor)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from headway.evaluate.known_answers import known_answers

    print(json.dumps(known_answers(options.seconds)))
    return 0


def _unexpected(error: BaseException) -> HeadwayError:
    """In the words of Python."""
    return RunError(f"{type(error).__name__}: {error}", "", "the log of that rank has the traceback")


def _say(text: str) -> None:
    """On stderr, which is a log on the run's own disk: where that is full, the exit code still tells, and a rank goes."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # what is left unwritten would change the code at the end


def _leave_error(options: argparse.Namespace, error: HeadwayError) -> None:
    """Leave the message where the supervisor looks for it. The rank that fails first is the cause: the others follow from it."""
    from headway.base.files import create_exclusive

    directory = options.run / "segments" / f"{options.segment:04d}"
    with contextlib.suppress(HeadwayError):  # a full disk must not change the exit code; the log has the message too
        facts: dict[str, object] = {"refused": error.checkpoint} if isinstance(error, CheckpointRefused) else {}
        facts |= {"damage": error.damage} if isinstance(error, DamagedData) else {}
        facts |= {"corruption": error.facts} if isinstance(error, SilentCorruption) else {}
        rank = {"rank": options.rank} if options.world > 1 else {}
        content = json.dumps(_described(error) | facts | rank, indent=1, ensure_ascii=False) + "\n"
        create_exclusive(directory / "error.json", content.encode())


def _described(error: HeadwayError) -> dict:
    """An error as data, for the process that started this one."""
    return {"label": error.label, "problems": [asdict(problem) for problem in error.problems], "exit_code": error.exit_code}


VERBS = {
    "train": _train,
    "sample": _sample,
    "calibrate": _calibrate,
    "convert": _convert,
    "mup-trials": _mup_trials,
    "mup-check": _mup_check,
    "prove": _prove,
    "dryrun": _dryrun,
    "bench-input": _bench_input,
    "store": _store,
    "doctor": _doctor,
}

if __name__ == "__main__":
    sys.exit(main())
