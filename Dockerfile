# `discreet serve` in a container: `make docker` builds it, compose.yaml runs it behind Caddy (docs/server.md).
FROM python:3.11-slim AS build
WORKDIR /build
RUN python -m venv /opt/discreet
COPY pyproject.toml constraints.txt LICENSE README.md CHANGELOG.md SECURITY.md ./
# the wheel carries the pages
COPY docs docs
COPY src src
RUN /opt/discreet/bin/python -m pip install --no-cache-dir --disable-pip-version-check \
    -c constraints.txt '.[server,postgres]'

FROM python:3.11-slim
COPY --from=build /opt/discreet /opt/discreet
ENV PATH=/opt/discreet/bin:$PATH
# A new volume takes owner and mode from here: keys and ledgers are nobody else's.
RUN useradd --uid 10001 --create-home discreet \
    && install --directory --owner discreet --group discreet --mode 700 /srv/discreet /srv/data
USER discreet
WORKDIR /srv/discreet
# people, tokens and jobs; tables with their schemas, ledgers and keys
VOLUME ["/srv/discreet", "/srv/data"]
EXPOSE 8000
# The page of log-in is the one that answers everybody; it opens no session and counts as no attempt.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/login', timeout=4)"]
ENTRYPOINT ["discreet"]
# Without --behind-tls the server refuses to listen at another address than its own machine's.
CMD ["serve", "--state", "/srv/discreet", "--root", "/srv/data", "--host", "0.0.0.0", "--port", "8000", "--behind-tls"]
