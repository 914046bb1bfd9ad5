"""
Code that reads files strangers have made, run in a process of its own with limits and no secrets.

It imports nothing of the service: what it finds goes out as frames (`frames`), which `formats.confined`
reads. A crash of a C library, or a file that unpacks without end, ends that process alone.
"""
