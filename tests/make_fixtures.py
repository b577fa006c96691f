"""Writes tests/fixtures/ai2: small ELMo files in AI2's format, with the vectors that a loader must
find.

    python tests/make_fixtures.py            # writes the folder anew: some seconds

The weights are random, from a seed per case. The vectors come from `ai2_reference.py`: plain numpy
in 64 bits, one time step after the other, which shares no line with the library.
"""
import hashlib, json, shutil
from pathlib import Path
import h5py
import ai2_reference as ref

FOLDER = Path(__file__).parent/'fixtures'/'ai2'
SENTENCES = ["She sat on the bank of the river .".split(), ['.'],
    ['internationalisierungs' + 'möglichkeiten'*3, 'a'*47 + 'ß', 'x'*200],
        ['ბანკი', '🏦', 'नदी', 'naïve'], ['<S>', '</S>', '<UNK>', '\u00a0', "don't"], ['bank']*5]
SMALL = dict(cnn=dict(filters=[[1, 2], [2, 3], [3, 3]], n_highway=1, embedding=dict(dim=3)),
             lstm=dict(projection_dim=4, dim=7))

def case(cnn={}, lstm={}, drop=(), **top):
    return ref.options({**SMALL['cnn'], **cnn}, {**SMALL['lstm'], **lstm}, drop, **top)

CASES = {
    'published': case(cnn=dict(n_characters=261), bidirectional=True, dropout=0.1,
                      n_tokens_vocab=793471, unroll_steps=20, n_train_tokens=768648884),
    'two_highways': case(cnn=dict(n_highway=2)),
    'tanh': case(cnn=dict(activation='tanh')),
    'no_skip_connections': case(lstm=dict(use_skip_connections=False)),
    'no_clips': case(lstm=dict(cell_clip=None, proj_clip=None)),
    'cell_clip': case(drop=['proj_clip']),
    'projection_clip': case(drop=['cell_clip']),
    'no_cnn_projection': case(lstm=dict(projection_dim=8, dim=9)),
    'no_lstm_projection': case(lstm=dict(dim=4)),
    'other_filters': case(cnn=dict(filters=[[7, 3], [2, 2], [5, 3]], max_characters_per_token=12))}

def write_arrays(path, arrays):
    "An HDF5 file without the room that it keeps for more: every HDF5 from 1.8 on reads it"
    with h5py.File(path, 'w', libver='v108') as f:
        for name,array in arrays.items(): f[name] = array

def write(folder=FOLDER):
    "Writes all files; those that were in the folder go, except for README.md"
    folder.mkdir(parents=True, exist_ok=True)
    for found in folder.iterdir():
        if found.is_dir(): shutil.rmtree(found)
    (folder/'vectors').mkdir()
    (folder/'sentences.json').write_text(
        json.dumps(SENTENCES, ensure_ascii=False, indent=1) + '\n', encoding='utf-8')
    for seed,(name,options) in enumerate(CASES.items()):
        weights = ref.random_file(options, seed)
        vectors = {str(i): ref.layers(weights, options, tokens)[:, 1:-1]
                   for i, tokens in enumerate(SENTENCES)}
        (folder/name).mkdir()
        write_arrays(folder/name/'weights.hdf5', weights)
        write_arrays(folder/'vectors'/f'{name}.hdf5', vectors)
        (folder/name/'options.json').write_text(json.dumps(options, indent=1) + '\n')
    sums = []
    for file in sorted(folder.rglob('*')):
        if file.is_file() and file.name not in ('README.md', 'SHA256SUMS'):
            sums.append(f'{hashlib.sha256(file.read_bytes()).hexdigest()}  '
                        f'{file.relative_to(folder).as_posix()}\n')
    (folder/'SHA256SUMS').write_text(''.join(sums))

if __name__ == '__main__': write()
