"""ELMo in a service: `POST /embed` takes texts and returns the vectors of their tokens.

    pip install elmo_fastai fastapi uvicorn
    uvicorn --factory service_app:app                                       # in tests/benchmarks
    curl localhost:8000/embed --json '{"texts": ["a bank of the river"], "mean": true}'
"""
import base64
from typing import Annotated
import torch
from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from elmo_fastai.all import Elmo

MAX_TOKENS = 1000                                         # of one text
MAX_ALL = 4000                                            # of a request; 60 MB of digits at most
MAX_BYTES = 1_000_000                                     # of a request's body

class BodyLimit:
    "Answers 413 to a body that is too long, by its length before it is read, or while it comes"
    def __init__(self, app): self.app = app

    async def __call__(self, scope, receive, send):
        if scope['type'] != 'http': return await self.app(scope, receive, send)
        length = dict(scope['headers']).get(b'content-length', b'0')
        left = MAX_BYTES
        if not length.isdigit() or int(length) > left:
            return await self.refuse(scope, receive, send)
        chunks = []                                       # a body may come without its length
        while True:
            message = await receive()
            if message['type'] != 'http.request': return
            chunks.append(message.get('body', b''))
            left -= len(chunks[-1])
            if left < 0: return await self.refuse(scope, receive, send)
            if not message.get('more_body'): break
        body = [dict(type='http.request', body=b''.join(chunks), more_body=False)]
        async def again(): return body.pop() if body else await receive()
        await self.app(scope, again, send)

    async def refuse(self, scope, receive, send):
        detail = f'the body is too long: send at most {MAX_BYTES:,} bytes'
        await JSONResponse(dict(detail=detail), 413)(scope, receive, send)

class Texts(BaseModel):
    texts:list[Annotated[str, Field(max_length=50_000)]] = Field(min_length=1, max_length=64)
    mean:bool = False                                     # one vector per text, not per token
    base64:bool = False                                   # 32-bit floats instead of digits

def service(embed, tokenize):
    "An application around `embed`, which turns lists of tokens into arrays [T, D]"
    app = FastAPI(title='ELMo')
    app.add_middleware(BodyLimit)

    @app.exception_handler(RequestValidationError)
    def refuse(request, error):                           # without the input, which may be anything
        found = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        return JSONResponse(dict(detail='; '.join(found)), 422)

    @app.post('/embed')
    # no `async`: it runs in a thread of a pool
    def vectors(request:Texts):
        sents = [tokenize(text) for text in request.texts]
        for i,tokens in enumerate(sents):
            if len(tokens) > MAX_TOKENS: raise HTTPException(
                422, f'texts[{i}] has {len(tokens):,} tokens: send at most {MAX_TOKENS:,}')
        n_tokens = sum(map(len, sents))
        if n_tokens > MAX_ALL: raise HTTPException(
            422, f'the texts have {n_tokens:,} tokens in all: send at most {MAX_ALL:,}')
        found = embed(sents)
        if request.mean: found = [v.sum(0)/max(len(v), 1) for v in found]  # zeros of a blank
        if request.base64: found = [base64.b64encode(v.tobytes()).decode() for v in found]
        else: found = [v.tolist() for v in found]
        return JSONResponse(dict(tokens=sents, vectors=found))
    return app

def app():
    torch.set_num_threads(1)                              # requests share the cores already
    elmo = Elmo.from_pretrained('mini-en').eval()
    return service(elmo.embed, elmo.tokenize)
