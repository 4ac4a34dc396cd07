#!/bin/sh
# Makes the secrets of one deployment in deploy/secrets/ (or in the folder given): the Ray token, the Redis password, the
# Redis users file that holds only the password's hash, and Grafana's password. Existing secrets are kept: remove a file to renew it.
set -eu
umask 077

folder=${1:-$(dirname "$0")/secrets}

random() {
    od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n'
}

sha256() {
    { sha256sum 2>/dev/null || shasum -a 256; } | cut -d' ' -f1
}

mkdir -p "$folder"
[ -s "$folder/ray_token" ] || random >"$folder/ray_token"
[ -s "$folder/grafana_password" ] || random >"$folder/grafana_password"
if ! [ -s "$folder/redis_password" ]; then
    random >"$folder/redis_password"
    rm -f "$folder/users.acl"
fi
if ! [ -s "$folder/users.acl" ]; then
    # rlep: its own keys, no administration but reading the configuration, which it checks before it trusts the server.
    # health: may ping, nothing else. default: switched off, so a connection without a name can do nothing; it keeps its
    # rights because Redis 7 replays the append-only file as this user, and would drop every transaction it may not run.
    cat >"$folder/users.acl" <<EOF
user default off ~* &* +@all
user health on nopass resetkeys resetchannels -@all +ping
user rlep on #$(sha256 <"$folder/redis_password") ~rlep:* resetchannels +@all -@admin -@dangerous +info +config|get
EOF
fi
# Containers read these files as another user. The folder itself stays closed to everybody else on this machine.
chmod 700 "$folder"
chmod 644 "$folder"/ray_token "$folder"/redis_password "$folder"/users.acl "$folder"/grafana_password
