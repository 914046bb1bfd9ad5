FROM python:3.11-slim
ENV PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
COPY requirements/run.txt requirements/
RUN pip install --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY service service
COPY api api
COPY workers workers
COPY openapi openapi
COPY examples examples
ENV NUMBA_CACHE_DIR=/var/cache/assay
RUN pip install --no-deps --no-build-isolation -e client -e . \
 && useradd --create-home assay && mkdir -p /data $NUMBA_CACHE_DIR \
 && python -m workers.warm && chown -R assay /data $NUMBA_CACHE_DIR
USER assay
ENV ASSAY_HOME=/data ASSAY_STORE=/data/store ASSAY_API_KEYS_FILE=/data/keys
VOLUME /data
EXPOSE 8000
CMD ["python", "-m", "uvicorn", "api.main:from_environment", "--factory", "--host", "0.0.0.0", \
     "--port", "8000", "--no-access-log", "--no-proxy-headers", "--log-level", "warning"]
