"Options: names, errors, times, settings in files"
import argparse, json, math, sys

import pytest
from hypothesis import given, settings as limits, strategies as st

from elmo_fastai.base import options as module
from elmo_fastai.base.errors import CommandError
from elmo_fastai.base.options import CommandLine, clock, in_words, seconds, to_toml, written

def make():
    p = CommandLine('do', 'FILE [options]', 'Does it.', {'a.txt': 'so'}, dict(howmany='how-many', w='width'), ('shape',))
    options = {'files FILE': 'files', '--how-many N': '(default: 3)', '--width X': '(default: 1)', '--name NAME': '(default: a)', '--fast': 'quick, by 100 %',
               '--bf16': 'half', '--config FILE': 'settings'}
    return p.add({'all': options}, files=dict(nargs='*'), name=dict(choices=['a', 'b']), bf16=dict(action=argparse.BooleanOptionalAction))

@pytest.mark.parametrize('line,found', [
    ('', {}), ('x y', dict(files=['x', 'y'])), ('--how-many 3', dict(how_many=3)), ('--how_many=3', dict(how_many=3)), ('--howmany 3', dict(how_many=3)), ('--w 2', dict(width=2.)),
    ('--fast --no-bf16 x', dict(fast=True, bf16=False, files=['x'])), ('--bf16', dict(bf16=True)), ('-- --how_many', dict(files=['--how_many'])), ('--how-many -3', dict(how_many=-3)),
    ('x --name b', dict(files=['x'], name='b')), ('--name a_b=c', None)], ids=str)
def test_only_what_was_said_comes_back(line, found, capsys):
    if found is None:
        with pytest.raises(SystemExit): make().parse(line.split())
    else: assert make().parse(line.split()) == found

def test_the_process_is_asked_without_arguments(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['do', 'x', '--fast'])
    assert make().parse() == dict(files=['x'], fast=True)

@pytest.mark.parametrize('line,says', [('--how 3 --man', 'no option --man'), ('--how-manny 3', r'--how-manny (did you mean --how-many?)'), ('--width wide', "invalid float value: 'wide'"), ('--width', 'expected one argument'),
    ('x --fast y', "what is 'y'?"), ('--name c', "invalid choice: 'c'"), ('-x', 'no option -x')], ids=str)
def test_errors_are_one_line(capsys, line, says):
    with pytest.raises(SystemExit) as e: make().parse(line.split())
    out, err = capsys.readouterr()
    assert e.value.code == 2 and not out and len(err.splitlines()) == 1 and err.startswith('do: ') and says in err and 'do --help' in err

@pytest.mark.parametrize('columns', [40, 80, 112, 300])
def test_the_page_is_as_wide_as_the_terminal_but_not_wider_than_a_person_reads(monkeypatch, columns):
    monkeypatch.setenv('COLUMNS', str(columns))
    p = make()
    p.add_argument_group('more').add_argument('--long', help='word '*200)
    widest = max(map(len, p.format_help().splitlines()))
    assert widest <= min(columns, 112) and widest > min(columns, 112) - 12

# times

@given(st.floats(1e-3, 1e7))
def test_a_time_that_is_written_is_the_time_that_is_read(s): assert seconds(written(s)) == pytest.approx(s, rel=1e-2 if s < 1 else 1e-5)

@pytest.mark.parametrize('text,s', [('1h', 3600), ('.5h', 1800), ('1h2m3s', 3723), ('90s', 90), ('1.5m', 90), (90, 90), (.25, .25), ('0.06s', .06)])
def test_times(text, s): assert seconds(text) == s

@pytest.mark.parametrize('text', ['', ' ', '15', 'h', '1m1h', '1 h', '-1m', '1e3s', '0m', 'm15', 0, -1, math.nan, math.inf, None, True, [], '9'*400 + 's'], ids=str)
def test_times_that_can_not_be(text):
    with pytest.raises(CommandError, match='--every must be a time such as 15m'): seconds(text, 'every')

def test_times_for_people():
    assert [clock(o) for o in (0, 9.6, 59.7, 3600, 36000)] == ['0:00', '0:10', '1:00', '1:00:00', '10:00:00']
    assert [in_words(o) for o in (.012, 9.4, 50, 99.9, 101, 5999, 6001, 90000)] == ['0.012 s', '9.4 s', '50 s', '100 s', '2 min', '100 min', '1.7 h', '25.0 h']

# files

VALUES = st.one_of(st.booleans(), st.integers(-2**60, 2**60), st.floats(allow_nan=False, allow_infinity=False), st.text(st.characters(blacklist_categories=('Cs',)), max_size=20))
NAMES = st.from_regex(r'[a-z][a-z0-9_]{0,9}', fullmatch=True)

@limits(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, st.one_of(VALUES, st.lists(VALUES, max_size=4), st.none())), st.dictionaries(NAMES, VALUES, min_size=1))
def test_what_is_written_in_toml_is_read(plain, table):
    there = {**plain, 'table': table}
    assert module.tomllib.loads(to_toml(there)) == {k: v for k,v in there.items() if v is not None}

def test_what_toml_can_not_hold_does_not_stop_a_run():
    assert module.tomllib.loads(to_toml(dict(name='a\udcffb'))) == dict(name='a?b')
    with pytest.raises(ValueError): to_toml(dict(x=math.nan))

@pytest.mark.parametrize('kind', ['toml', 'json'])
def test_settings_from_a_file(tmp_path, kind):
    there = dict(files=['x', 'y'], how_many=4, width=2, name='b', fast=True, bf16=False, shape=dict(a=1))
    f = tmp_path/f'run.{kind}'
    f.write_text(to_toml(there) if kind == 'toml' else json.dumps(there))
    assert make().from_file(f) == make().from_file(str(f)) == there

def test_names_in_a_file_are_those_of_the_command_line(tmp_path):
    f = tmp_path/'run.toml'
    for line in ('how_many = 4', 'how-many = 4', 'howmany = 4'):
        f.write_text(line)
        assert make().from_file(f) == dict(how_many=4)
    f.write_text('files = "x"')
    assert make().from_file(f) == dict(files='x')

@pytest.mark.parametrize('text,says', [('how_many = 4.0', 'a whole number, not 4.0'), ('how_many = true', 'a whole number, not true'), ('width = "2"', 'a number, not "2"'), ('fast = 1', 'true or false, not 1'), ('files = [1]', 'a list of texts'),
    ('files = []', 'a list of texts'), ('name = "c"', 'one of a, b'), ('config = "x"', "sets 'config', and there is no option"), ('help = true', "sets 'help'"), ('how_mani = 3', 'did you mean how_many'), ('shape = 3', 'must be a table'),
    ('[other]\na = 1', "sets 'other'"), ('name = 1979-05-27', 'a text in quotes, not "1979'), ('a = 1\na = 2', 'TOML'), ('\udcff', 'TOML')], ids=str)
def test_files_that_can_not_be(tmp_path, text, says):
    (tmp_path/'run.toml').write_bytes(text.encode('utf-8', 'surrogateescape'))
    with pytest.raises(CommandError) as e: make().from_file(tmp_path/'run.toml')
    assert says in str(e.value) and 'run.toml' in str(e.value) and len(str(e.value).splitlines()) == 1

def test_json_that_can_not_be(tmp_path):
    f = tmp_path/'run.JSON'
    for text,says in (('[1]', 'holds list'), ('{', 'JSON'), ('['*100_000, 'JSON')):
        f.write_text(text)
        with pytest.raises(CommandError, match=says): make().from_file(f)

def test_what_is_no_file_of_settings(tmp_path):
    with pytest.raises(CommandError, match='no file'): make().from_file(tmp_path)
    with pytest.raises(CommandError, match='no file'): make().from_file('/dev/zero')
    (tmp_path/'large.toml').write_text('#'*2_000_000)
    with pytest.raises(CommandError, match='too large'): make().from_file(tmp_path/'large.toml')
