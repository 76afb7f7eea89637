"""topicsd next to Redis Streams and NATS JetStream: the same work on each, in turns, in one run."""
