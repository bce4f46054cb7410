"""What all tests share."""

import signal

# nohup ignores SIGHUP, and a shell ignores SIGINT for what it runs in the background. Tests send
# both, and their processes inherit what is ignored here.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
