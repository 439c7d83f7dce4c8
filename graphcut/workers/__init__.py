"""Run parts on workers: executors (threads, processes, Ray), scheduling, pipelined runs and their log."""
