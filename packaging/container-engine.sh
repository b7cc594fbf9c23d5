#!/usr/bin/env bash
# Prints which of podman and docker works here; nothing if neither does.
for engine in podman docker; do
  if command -v "$engine" >/dev/null 2>&1 && timeout 20 "$engine" info >/dev/null 2>&1; then
    echo "$engine"
    break
  fi
done
