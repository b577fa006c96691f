"""The core of the library, some fifty names. Everything else is imported from its module."""
# Written by hand: exported from a notebook this module would get an empty `__all__`.
from .errors import CheckpointError, CorpusError, ModelFileError
from .text.corpora import Corpus, text_corpus, tiny_shakespeare, toy_corpus, wikitext2
from .text.ngrams import KneserNey
from .text.tokens import ByteCharVocab, CharVocab, WordVocab, word_tokenize
from .nn.charcnn import CharacterLayer, CharCNN
from .nn.bilm import (
    ELMO_MEDIUM, ELMO_ORIGINAL, ELMO_SMALL, ELMO_TINY, BiLM, BiLMConfig)
from .data.blog import (
    BiLMBlock, ELMODataLoader, ElmoPadChunk, ElmoTransform, NGramsTokenizer, NumericalizeChars)
from .data.batches import SentenceDataLoader, StreamDataLoader
from .data.loaders import ElmoDataLoaders
from .data.blocks import (
    ClassifyDataLoaders, ElmoBlock, TagDataLoaders, TagsBlock, WordsBlock)
from .practice.streams import stream_loaders
from .elmo import Elmo, ScalarMix
from .practice.embed import embed_file
from .practice import onnx as _onnx                     # `Elmo.to_onnx`
from .practice.vectorizer import ElmoVectorizer
from .train.learner import CarryState, bilm_learner
from .practice.checkpoint import Checkpoints, resume
from .train.speak import generate
from .practice.report import make_report
from .practice.command import pretrain
from .tasks.cbow import WordVectors, cbow_learner
from .tasks.classify import elmo_classifier_learner, random_elmo
from .tasks.tag import elmo_tagger_learner
from .practice.folder import load_bilm, save_bilm
from .practice.learners import load_encoder, save_encoder
from .practice.scores import Report
