"For tests and scripts that open pages in a browser: a server, Chromium, what moves on a page"
import http.server, shutil, threading
from contextlib import contextmanager

def chromium():
    "The place of Chromium; None where there is none"
    names = 'chromium', 'chromium-browser', 'google-chrome'
    return next(filter(None, map(shutil.which, names)), None)

@contextmanager
def served(
    folder,       # what is served
    base='/',     # path before its files
    missing=None  # the page for wrong addresses, if it has one
):
    "Serves a folder on this machine alone; the address of its first page"
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args): super().__init__(*args, directory=str(folder))
        def log_message(self, *args): pass
        def translate_path(self, path):
            inside = path.startswith(base)
            return super().translate_path('/' + path.removeprefix(base) if inside else '/none')
        def send_error(self, code, *args, **kw):
            if code != 404 or not missing: return super().send_error(code, *args, **kw)
            self.send_response(404)
            self.send_header('Content-Type', 'text/html')
            self.end_headers()
            self.wfile.write(missing.read_bytes())
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try: yield f'http://127.0.0.1:{server.server_port}{base}'
    finally: server.shutdown()

# A script for each page: how far its parts move while it loads
SHIFTS = """window.shifts = [];
new PerformanceObserver(list => {
  for (const e of list.getEntries()) if (!e.hadRecentInput) shifts.push(e.value);
}).observe({type: 'layout-shift', buffered: true})"""

def shifted(page): return page.evaluate('shifts.reduce((a, b) => a + b, 0)')
