"""Time and memory of `learn.annotate` per 1,000 sentences, beside `embed_file` on the same text
and the same biLM (library: Labels for a file).

    python tests/benchmarks/annotate.py                       # some minutes on one core
    python tests/benchmarks/annotate.py --json figures.json

Each job runs in a process of its own, in turns. The text is drawn from the toy language. A tagger
writes CoNLL, a classifier CSV, and `embed` the mixed vectors of each token to HDF5. `growth` is
how much more memory the larger size takes than the smaller one at most.
"""
import json, tempfile
from harness import in_process, medians, opt, options, peak_bytes, seconds, turns, versions
from harness import processor, write_figures

def learner(kind, elmo, sents):
    "A tagger or a classifier that was not trained: what it costs does not depend on that"
    from elmo_fastai.all import ClassifyDataLoaders, TagDataLoaders
    from elmo_fastai.all import elmo_classifier_learner, elmo_tagger_learner
    if kind == 'tag':
        return elmo_tagger_learner(TagDataLoaders.from_sents(sents, device='cpu'), elmo)
    rows = [(sent.text, sent.label) for sent in sents]
    return elmo_classifier_learner(ClassifyDataLoaders.from_data(rows, device='cpu'), elmo)

def write(kind, path, sents, n):
    "A file with `n` sentences"
    ending = dict(tag='.conll', classify='.csv', embed='.txt')[kind]
    with open(f'{path}/in{ending}', 'w') as file:
        if kind == 'classify': file.write('text;\n')
        for i in range(n):
            tokens = [*sents[i % len(sents)].tokens, f'w{i}']
            end = ';\n' if kind == 'classify' else '\n'
            file.write('\n'.join(tokens) + '\n\n' if kind == 'tag' else ' '.join(tokens) + end)
    return f'{path}/in{ending}', f'{path}/out{".hdf5" if kind == "embed" else ending}'

def one(kind, n, model):
    "Seconds per 1,000 sentences, and the peak of memory in MB, of one job in this process"
    from elmo_fastai.all import Elmo, embed_file, toy_corpus
    elmo = Elmo.from_pretrained(model, tokenizer='space')
    sents = toy_corpus(n_train=500, n_valid=1, n_test=1, n_unseen=1).gold['train']
    learn = None if kind == 'embed' else learner(kind, elmo, sents)
    def quiet(message): pass
    with tempfile.TemporaryDirectory() as tmp:
        source, out = write(kind, tmp, sents, n)
        before = peak_bytes()
        if kind == 'embed': job = lambda: embed_file(source, out, elmo, layers='mix', say=quiet)
        else: job = lambda: learn.annotate(source, out, progress=False, say=quiet)
        took = seconds(job)
    print(json.dumps(dict(seconds=took*1000/n, mb=(peak_bytes() - before)/2**20)))

def main():
    a = options(__doc__, job=opt(None, 'only one, such as "tag 1000"'), model='mini-en',
                sizes='2000,20000', reps=3, json=opt(None, 'the file of figures'))
    if a.job:
        kind, n = a.job.split()
        return one(kind, int(n), a.model)
    sizes = [int(n) for n in a.sizes.split(',')]
    jobs = [f'{kind} {n}' for kind in ('embed', 'tag', 'classify') for n in sizes]
    found = turns({job: lambda rep, job=job: in_process(job) for job in jobs}, a.reps)
    rows = {}
    for job,runs in found.items():
        times = medians({name: [run[name] for run in runs] for name in ('seconds', 'mb')})
        rows[job] = {name: round(value, 2) for name,value in times.items()}
        print(f"{job:18}{rows[job]['seconds']:8.2f} s per 1,000{rows[job]['mb']:10.0f} MB")
    growth = {}
    for kind in ('embed', 'tag', 'classify'):
        few, many = (rows[f'{kind} {n}']['mb'] for n in (sizes[0], sizes[-1]))
        growth[kind] = round(many - few)
        ratio = rows[f'{kind} {sizes[-1]}']['seconds']/rows[f'embed {sizes[-1]}']['seconds']
        print(f"{kind:18}{ratio:8.2f} times embed{growth[kind]:13,} MB more")
    write_figures(a.json, dict(model=a.model, sizes=sizes, reps=a.reps, rows=rows, growth=growth,
                               processor=processor(), versions=versions('torch', 'fastai')))

if __name__ == '__main__': main()
