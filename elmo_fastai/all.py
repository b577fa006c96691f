"""All public names of the library, as `fastai.text.all` does for fastai: `from elmo_fastai.all import *`."""
# Written by hand: exported from a notebook this module would get an empty `__all__`.
from .corpora import *
from .toy import *
from .tokens import *
from .batches import *
from .ngrams import *
from .charcnn import *
from .recurrent import *
from .bilm import *
from .report import *
from .pretrain import *
