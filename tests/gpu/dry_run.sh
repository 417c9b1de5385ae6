#!/usr/bin/env bash
echo later; exit 77
