"""The page that `finola app` serves: a photo goes in, and what a model makes of it can be seen and moved.

Nothing here keeps a photo: a visitor's pictures live in that visitor's session, and no file of theirs stays on disk.
"""
