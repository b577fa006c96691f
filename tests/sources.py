"A text in each form that a stream is made of"
import datasets, pandas as pd
from loading import ALL_LINES, MIXED, mixed

def as_hub(folder):
    "A data set as the hub has it, in Parquet, of three files"
    (folder/'hub'/'set').mkdir(parents=True)
    for i in range(3):
        part = pd.DataFrame(dict(id=i, text=ALL_LINES[i*54:(i + 1)*54]))
        part.to_parquet(folder/'hub'/'set'/f'train-0000{i}-of-00003.parquet')
    return f"hub:{folder/'hub'/'set'}"

def written(folder, ending):
    path = folder/f'a.{ending}'
    df = pd.DataFrame(dict(id=1, text=ALL_LINES))
    if ending == 'parquet': df.to_parquet(path, row_group_size=50)
    elif ending == 'jsonl': df.to_json(path, orient='records', lines=True)
    else:
        text = '\ufeff' + '\r\n'.join(ALL_LINES)
        path.write_text(text, encoding='utf-8', newline='')
    return path

def saved(folder):
    datasets.Dataset.from_dict(dict(text=ALL_LINES)).save_to_disk(folder/'saved')
    return folder/'saved'

SOURCES = dict(
    text=lambda d: written(d, 'txt'), jsonl=lambda d: written(d, 'jsonl'),
    parquet=lambda d: written(d, 'parquet'), hub=as_hub, saved=saved,
    table=lambda d: datasets.Dataset.from_dict(dict(text=ALL_LINES, x=[float('nan')]*160)),
    stream=lambda d: SOURCES['table'](d).to_iterable_dataset(num_shards=3),
    tokens=lambda d: datasets.Dataset.from_dict(dict(tokens=[line.split() for line in ALL_LINES])))

def source(what, folder): return mixed()[what] if what in MIXED else SOURCES[what](folder)
