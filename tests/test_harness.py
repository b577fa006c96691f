"The harness of the benchmarks: options, processes that answer, files of figures"
import re, subprocess, sys
from pathlib import Path

import pytest

benchmarks = Path(__file__).resolve().parent/'benchmarks'
sys.path[:0] = [str(benchmarks), str(benchmarks.parent)]
from pages import page
from harness import kept, medians, opt, options, peak_bytes, read_figures, turns, write_figures

def test_an_option_has_the_type_of_its_default(tmp_path):
    fields = dict(lr=.1, seq_len=opt(64, 'tokens'), sides=opt(['a'], nargs='+', choices=['a', 'b']),
                  quick=False, limit=opt(None, type=float), json=tmp_path/'usual.json')
    usual = options('what it does', [], **fields)
    assert vars(usual) == dict(lr=.1, seq_len=64, sides=['a'], quick=False, limit=None,
                               json=tmp_path/'usual.json')
    asked = options('', '--lr 2 --seq-len 8 --sides b a --quick --limit 3 --json f'.split(),
                    **fields)
    assert vars(asked) == dict(lr=2., seq_len=8, sides=['b', 'a'], quick=True, limit=3.,
                               json=Path('f'))
    with pytest.raises(SystemExit): options('', ['--sides', 'c'], **fields)

def test_help_says_what_is_usual_and_hides_what_is_not_for_people(capsys):
    with pytest.raises(SystemExit):
        options('What it does.', ['--help'], seeds=opt(3, 'of the weights'), job=opt(hidden=True))
    said = capsys.readouterr().out
    assert 'What it does.' in said and 'of the weights (default: 3)' in said and '--job' not in said

def test_sides_take_turns():
    order = []
    def side(name): return lambda rep: order.append((name, rep)) or rep
    found = turns(dict(a=side('a'), b=side('b')), 3)
    assert order == [('a', 0), ('b', 0), ('a', 1), ('b', 1), ('a', 2), ('b', 2)]
    assert medians(found) == dict(a=1, b=1)

SCRIPT = '''
import sys
sys.path.insert(0, FOLDER)
from harness import Worker, answer, in_process, options, opt
args = options('', n=2, job=opt(hidden=True))
if args.job == 'double': answer(lambda line: args.n*int(line))
elif args.job: print('a remark'); print(args.n)
else:
    worker = Worker('--job', 'double')
    print([worker(5), worker(6), in_process('n'), in_process('n', '--n', 9)])
    worker.close()
    in_process('no', '--n', 'x')
'''
def test_a_script_starts_itself_again_with_its_options(tmp_path):
    file = tmp_path/'script.py'
    file.write_text(SCRIPT.replace('FOLDER', repr(str(benchmarks))))
    run = subprocess.run([sys.executable, file, '--n', '3'], capture_output=True, text=True)
    assert run.stdout == '[15, 18, 3, 9]\n', run.stderr
    assert run.returncode and 'no: stopped with 2' in run.stderr

def test_figures_are_kept_with_their_settings(tmp_path):
    file, found = tmp_path/'deep'/'figures.json', dict(lr=.1, sizes=(1, 2), rows=[])
    assert kept(file, found) == [] and kept(None, found) == []
    write_figures(file, dict(found, rows=['é'], torch='2'))
    assert kept(file, found) == ['é'] and [f.name for f in file.parent.iterdir()] == [file.name]
    with pytest.raises(SystemExit, match='another lr: name another file'):
        kept(file, found | dict(lr=1))
    write_figures(file, [dict(a=1), dict(a=2)], lines=True)
    assert read_figures(file) == [dict(a=1), dict(a=2)] and len(file.read_text().splitlines()) == 4
    assert read_figures(tmp_path/'none', 5) == 5

def test_peak_memory_is_this_program_s():
    code = (f'import sys; sys.path.insert(0, {str(benchmarks)!r}); import harness; '
            'print(harness.peak_bytes())')
    hold = bytearray(300_000_000)
    child = int(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout)
    assert peak_bytes() > len(hold) > 3*child

def test_pages_that_a_benchmark_takes_from():
    "What they define can be had without what they try and show"
    names = {name for file in benchmarks.glob('*.py')
             for name in re.findall(r"\bpage\('([\w/]+)'\)", file.read_text('utf-8'))}
    assert len(names) > 5 and all(vars(page(name)) for name in names)
