"""Write nbs/data/ladder.csv, the table that grows through the course. Each lesson is run as it is,
slow cells too, and leaves the rows that it adds in its list `rungs`.

    python tests/benchmarks/ladder.py          # a quarter of an hour of two cores
    python tests/benchmarks/ladder.py 04 05    # only these lessons; all other rows stay
"""
import json
import nbformat, pandas as pd
from fastcore.script import call_parse
from harness import ROOT, log
from execute import Chapter

LESSONS = '01', '02', '04', '05', '06', '08', '09'
TABLE = ROOT/'nbs'/'data'/'ladder.csv'
COLUMNS = ['model', 'forward', 'backward', 'parameters', 'seconds', 'writes1', 'writes2', 'writes3']

def rungs_of(lesson):
    [file] = ROOT.glob(f'nbs/course/{lesson}_*.ipynb')
    nb = nbformat.read(file, 4)
    told = nbformat.v4.new_code_cell('import json\nprint(json.dumps(rungs, default=float))')
    nb.cells.append(told)
    Chapter(nb, slow=True, resources={'metadata': {'path': str(file.parent)}}).execute()
    return json.loads(nb.cells[-1].outputs[-1].text)

@call_parse
def main(
    *lessons:str    # their numbers (default: all)
):
    "Run `lessons` in their order, and put their rows into the table, the floor last"
    rows = {row['model']: row for row in pd.read_csv(TABLE).to_dict('records')}
    for lesson in lessons or LESSONS:
        for row in rungs_of(lesson):
            log(row)
            rows[row['model']] = row
        last = [rows[name] for name in rows if name != 'floor'] + [rows['floor']]
        table = pd.DataFrame(last, columns=COLUMNS)
        numbers = COLUMNS[1:5]
        table[numbers] = table[numbers].apply(pd.to_numeric).round(1)
        table.astype({'parameters': 'Int64'}).to_csv(TABLE, index=False)
