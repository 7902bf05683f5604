# Image of the testbed: packaging/setup on Debian 12. TIER=cluster adds Ray.
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# Package index of pip, if it is not the default. Never a secret: build arguments stay in the image history.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL

ARG TIER=run

WORKDIR /opt/moefabric
COPY packaging/setup packaging/locked packaging/debian-run.txt packaging/requirements.lock packaging/
RUN packaging/setup --dependencies-only ${TIER} && rm -rf /var/lib/apt/lists/* /root/.cache
COPY . .
# Services may be any user, and a checkout may be readable by its owner only.
RUN packaging/setup ${TIER} && find . ! -perm -a+r -exec chmod a+rX {} +

ENV PATH=/opt/moefabric/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1
CMD ["moefabric", "doctor"]
