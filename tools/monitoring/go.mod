module github.com/inferencecache/inference-cache/tools/monitoring

go 1.26.0
