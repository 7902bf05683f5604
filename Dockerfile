# The testbed in an image: what packaging/setup makes of a bare Debian 12.
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# Where pip gets its packages, if not from where it always does. Nothing secret: arguments stay in the history.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL

WORKDIR /opt/moefabric
COPY packaging/setup packaging/debian-run.txt packaging/requirements-run.txt packaging/constraints.txt packaging/
RUN packaging/setup --dependencies-only run && rm -rf /var/lib/apt/lists/* /root/.cache
COPY . .
RUN packaging/setup run

ENV PATH=/opt/moefabric/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1
CMD ["moefabric", "doctor"]
