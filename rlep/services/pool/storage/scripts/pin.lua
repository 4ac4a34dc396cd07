-- Keep records of one prompt from the cap's removal, or let them go again.
-- KEYS: pins records
-- ARGV: '1' to pin, '0' to unpin, content ids
-- Returns how many of the ids are in the pool.
local found = 0
for at = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[2], ARGV[at]) == 1 then
    redis.call(ARGV[1] == '1' and 'SADD' or 'SREM', KEYS[1], ARGV[at])
    found = found + 1
  end
end
return found
