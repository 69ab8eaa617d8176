"""One file per framework, with the same verbs in each: describe, load, feed, predict, release."""
