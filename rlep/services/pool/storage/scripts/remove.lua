-- Take records of one prompt out of the pool; with 'quarantine' they are kept aside and refused if they come again.
-- KEYS: state changes totals records quarantine
-- ARGV: prompt id, 'remove' or 'quarantine', mark, content ids
-- Returns how many there were.
local state, changes, totals, key, aside = unpack(KEYS)
if redis.call('HEXISTS', state, 'sealed') == 1 then return redis.error_reply('SEALED pool') end
local removed = 0
for at = 4, #ARGV do
  local id = ARGV[at]
  local value = redis.call('HGET', key, id)
  if value then
    -- First: a full Redis refuses a script's first write unless it takes something away, and then lets the others pass.
    redis.call('HDEL', key, id)
    if ARGV[2] == 'quarantine' then
      redis.call('HSET', aside, id, value)
      redis.call('HSET', state, 'aside', 1)
    end
    local label = struct.unpack('<I4', value)
    redis.call('HINCRBY', totals, 'n:' .. label, -1)
    redis.call('HINCRBY', totals, 'b:' .. label, -#value)
    removed = removed + 1
  end
end
if removed > 0 then
  local generation = redis.call('HINCRBY', state, 'generation', 1)
  redis.call('HSET', state, 'mark', ARGV[3])
  redis.call('RPUSH', changes, generation .. ' ' .. ARGV[3] .. ' ' .. ARGV[1])
  redis.call('LTRIM', changes, -512, -1)
end
return removed
