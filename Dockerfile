# docker build -t commlens . && docker run --rm -v "$PWD/traces:/traces:ro" commlens /traces
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel

FROM python:3.12-slim
COPY --from=build /src/dist/*.whl /tmp/
RUN wheel=$(ls /tmp/*.whl) && pip install --no-cache-dir "${wheel}[s3]" && rm /tmp/*.whl && useradd --create-home reader
USER reader
WORKDIR /work
ENTRYPOINT ["analyze"]
CMD ["--help"]
