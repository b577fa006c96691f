"Options: fields of a dataclass as a command line, in files and in Python; errors, times"
import json, math, sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np, pytest
from hypothesis import given, settings as limits, strategies as st

from elmo_fastai.base import options as module
from elmo_fastai.base.errors import CommandError
from elmo_fastai.base.options import (
    CommandLine, Options, at_least, in_words, option, read_settings, seconds, to_toml)


@dataclass
class Made(Options):
    "Options of every kind"
    files:list = option(None, 'files', 'FILE', nargs='*', group='what')
    how_many:int = option(3, 'so many', 'N', check=at_least(1), group='how')
    width:float = option(1., 'so wide', 'X')
    name:str = option('a', 'its name', 'NAME', choices=('a', 'b'))
    fast:bool = option(False, 'quick, by 100 %')
    bf16:bool = option(None, 'half')
    every:float = option('10m', 'now and then', 'TIME', read=seconds)
    start:str = option(None, 'begin with', 'MODEL', name='from')
    shape:dict = option(None, 'settings', 'FILE')

def make(): return CommandLine('do', 'FILE [options]', 'Does it.', {'a.txt': 'so'}, Made)

@pytest.mark.parametrize('line,found', [
    ('', {}), ('x y', dict(files=['x', 'y'])), ('--how-many 3', dict(how_many=3)),
    ('--how_many=3', dict(how_many=3)),
    ('--fast --no-bf16 x', dict(fast=True, bf16=False, files=['x'])), ('--bf16', dict(bf16=True)),
    ('--how-many -3', dict(how_many=-3)), ('x --name b', dict(files=['x'], name='b')),
    ('x --fast y', dict(files=['x', 'y'], fast=True)),
    ('--from m --every 3m', dict(start='m', every='3m')), ('--name a_b=c', None)], ids=str)
def test_only_what_was_said_comes_back(line, found, capsys):
    if found is None:
        with pytest.raises(SystemExit):
            make().parse(line.split())
    else:
        assert make().parse(line.split()) == found


def test_a_value_keeps_its_underscores():
    assert make().parse(['--from=my_model', '--from', 'a--b_c']) == dict(start='a--b_c')


def test_the_process_is_asked_without_arguments(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['do', 'x', '--fast'])
    assert make().parse() == dict(files=['x'], fast=True)

@pytest.mark.parametrize('line,says', [
    ('--how 3 --man', 'no option --man'),
    ('--how-manny 3', 'no option --how-manny'),
    ('--width wide', "invalid float value: 'wide'"), ('--width', 'expected one argument'),
    ('--name c', "invalid choice: 'c'"), ('-x', 'no option -x')], ids=str)
def test_errors_are_one_line(capsys, line, says):
    with pytest.raises(SystemExit) as e:
        make().parse(line.split())
    out, err = capsys.readouterr()
    assert (e.value.code == 2 and not out and len(err.splitlines()) == 1 and err.startswith('do: ')
            and says in err and 'do --help' in err)


@pytest.mark.parametrize('columns', [50, 80, 120])
def test_the_page_is_as_wide_as_the_terminal(monkeypatch, columns):
    monkeypatch.setenv('COLUMNS', str(columns))
    page = make().format_help()
    assert max(map(len, page.splitlines())) <= columns
    for o in ('what:', 'how:', '--how-many N', '(default: 3)', '(default: a)', 'quick, by 100 %',
              '--from MODEL', '--bf16, --no-bf16'):
        assert o in page, o
    assert (page.index('what:') < page.index('how:') < page.index('--how-many')
            and '(default: None)' not in page and '(default: False)' not in page)


# values

def test_values_are_checked_and_become_plain():
    made = Made(how_many=np.int64(4), width=2, start=Path('a'), every=90)
    assert ((made.how_many, made.width, made.start, made.every) == (4, 2.0, 'a', 90.0)
            and type(made.how_many) is int and type(made.width) is float)
    assert Made().every == 600 and Made.of(dict(how_many=None, name='b')) == Made(name='b')

@pytest.mark.parametrize('said,says', [
    (dict(how_many=4.0), '--how-many must be a whole number, not 4.0'),
    (dict(how_many=True), '--how-many must be a whole number, not True'),
    (dict(how_many='4'), "not '4'"),
    (dict(how_many=0), '--how-many must be at least 1, not 0'),
    (dict(width='2'), '--width must be a number'),
    (dict(width=False), '--width must be a number'),
    (dict(fast=1), '--fast must be true or false, not 1'),
    (dict(files=3), '--files must be a text, or a list of texts'),
    (dict(name='c'), "--name must be a or b, not 'c'"),
    (dict(name=3), '--name must be a text'),
    (dict(start=3), '--from must be a text'),
    (dict(how_mani=3), "no setting 'how_mani'"),
    (dict(shape=3), '[shape] must be a table'),
    (dict(every='3'), '--every must be a time')], ids=str)
def test_values_that_can_not_be(said, says):
    with pytest.raises(CommandError) as e:
        Made.of(said)
    assert says in str(e.value) and len(str(e.value).splitlines()) == 1
    if not set(said) - set(vars(Made())):
        with pytest.raises(CommandError):
            Made(**said)


# times

@pytest.mark.parametrize('text,s', [
    ('1h', 3600), ('.5h', 1800), ('90s', 90), ('1.5m', 90), (' 2m ', 120), (90, 90), (0.25, 0.25),
    ('0.06s', 0.06)])
def test_times(text, s):
    assert seconds(text) == s


@pytest.mark.parametrize('text', [
    '', ' ', '15', 'h', '1m1h', '-1m', '0m', 'm15', 'nans', 'infh', 0, -1, math.nan, math.inf, None,
    True, [], '9'*400 + 's'], ids=str)
def test_times_that_can_not_be(text):
    with pytest.raises(CommandError, match='--every must be a time such as 15m'):
        seconds(text, '--every')


def test_times_for_people():
    assert [in_words(o) for o in (0.012, 9.4, 50, 99.9, 101, 5999, 6001, 90000)] == [
        '0.012 s', '9.4 s', '50 s', '100 s', '2 min', '100 min', '1.7 h', '25.0 h']


# files

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=('Cs',)), max_size=20),
)
NAMES = st.from_regex(r'[a-z][a-z0-9_]{0,9}', fullmatch=True)

@limits(max_examples=200)
@given(st.dictionaries(NAMES, st.one_of(VALUES, st.lists(VALUES, max_size=4), st.none())),
       st.dictionaries(NAMES, VALUES, min_size=1))
def test_what_is_written_in_toml_is_read(plain, table):
    there = {**plain, 'table': table}
    assert module.tomllib.loads(to_toml(there)) == {k: v for k, v in there.items() if v is not None}


def test_what_toml_can_not_hold_does_not_stop_a_run():
    assert module.tomllib.loads(to_toml(dict(name='a\udcffb'))) == dict(name='a?b')
    with pytest.raises(ValueError): to_toml(dict(x=math.nan))

@pytest.mark.parametrize('kind', ['toml', 'json'])
def test_settings_from_a_file(tmp_path, kind):
    there = dict(
        files=['x', 'y'], how_many=4, width=2, name='b', fast=True, bf16=False, shape=dict(a=1)
    )
    f = tmp_path/f'run.{kind}'
    f.write_text(to_toml(there) if kind == 'toml' else json.dumps(there))
    assert read_settings(f, Made) == read_settings(str(f)) == there and Made.of(read_settings(
        f, Made)) == Made(**there)


def test_names_in_a_file_are_those_of_the_command_line(tmp_path):
    f = tmp_path/'run.toml'
    for line in ('how_many = 4', 'how-many = 4'):
        f.write_text(line)
        assert read_settings(f, Made) == dict(how_many=4)
    f.write_text('from = "x"')
    assert read_settings(f, Made) == dict(start='x')

@pytest.mark.parametrize('text', ['a = 1\na = 2', 'x', '\udcff'], ids=repr)
def test_files_that_can_not_be(tmp_path, text):
    (tmp_path/'run.toml').write_bytes(text.encode('utf-8', 'surrogateescape'))
    with pytest.raises(CommandError, match="run.toml can't be read as TOML") as e:
        read_settings(tmp_path/'run.toml')
    assert len(str(e.value).splitlines()) == 1

def test_json_that_can_not_be(tmp_path):
    f = tmp_path/'run.JSON'
    for text,says in (('[1]', 'holds list'), ('{', 'JSON'), ('['*100_000, 'JSON')):
        f.write_text(text)
        with pytest.raises(CommandError, match=says): read_settings(f)

def test_what_is_no_file_of_settings(tmp_path):
    for place, says in ((tmp_path, 'directory'), ('/dev/zero', 'device'),
                        (tmp_path/'no.toml', 'No such file')):
        with pytest.raises(CommandError, match=says):
            read_settings(place)
    (tmp_path/'large.toml').write_text('#'*2_000_000)
    with pytest.raises(CommandError, match='too many'): read_settings(tmp_path/'large.toml')
