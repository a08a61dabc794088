package store

// DefaultShards is how many shards a database is initialised with.
const DefaultShards = 64

// ShardOf is the shard of a saga. It never changes for a given number of shards: FNV-1a over namespace, a zero byte
// and id, with a final mix.
func ShardOf(namespace, id string, shards int) int {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(namespace) {
		h = (h ^ uint64(namespace[i])) * prime
	}
	h *= prime // the zero byte
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return int(h % uint64(shards))
}
