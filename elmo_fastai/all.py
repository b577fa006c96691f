"""The core of the library, some fifty names. Everything else is imported from its module."""
# Written by hand: exported from a notebook this module would get an empty `__all__`.
from .errors import CheckpointError, CorpusError, ModelFileError
from .text.corpora import Corpus, text_corpus, tiny_shakespeare, toy_corpus, wikitext2
from .ngrams import KneserNey
from .text.tokenizers import word_tokenize
from .tokens import (
    ByteCharVocab, CharVocab, ElmoTransform, NGramsTokenizer, NumericalizeChars, WordVocab)
from .charcnn import CharacterLayer, CharCNN
from .bilm import (
    ELMO_MEDIUM, ELMO_ORIGINAL, ELMO_SMALL, ELMO_TINY, BiLM, BiLMConfig)
from .batches import (
    BiLMBlock, ElmoDataLoaders, ElmoPadChunk, SentenceDataLoader, StreamDataLoader)
from .classifier import ClassifyDataLoaders
from .tagger import ElmoBlock, TagDataLoaders, TagsBlock, WordsBlock
from .practice.streams import stream_loaders
from .elmo import Elmo, ScalarMix
from .practice.embed import ElmoVectorizer, embed_file
from .practice import onnx as _onnx                     # `Elmo.to_onnx`
from .learner import CarryState, bilm_learner, generate
from .practice.checkpoint import Checkpoints, resume
from .practice.report import make_report
from .practice.command import pretrain
from .cbow import ELMODataLoader, WordVectors, cbow_learner
from .classifier import elmo_classifier_learner, random_elmo
from .tagger import elmo_tagger_learner
from .practice.folder import load_bilm, save_bilm
from .practice.learners import load_encoder, save_encoder
from .practice.scores import Report
