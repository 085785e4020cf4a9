package quota

// MaxClients is how many clients one rate limit keeps.
const MaxClients = shards * shardClients
