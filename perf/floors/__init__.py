"""How quick the shape of the product could be at best: servers that do nothing but what that shape forces on them.

The servers in here are yardsticks, not products: they understand the load of this bench and nothing else, and keep
no promise. They use what the product uses (sockets, one epoll set, msgspec, xxhash) in as few lines as possible.
"""
