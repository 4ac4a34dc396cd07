-- Insert records into one bucket, all or nothing, each at most once. At most 1,000 prompts a call (Lua's `unpack`).
-- KEYS: state index totals labels pins reply, then for each prompt its records and its quarantine
-- ARGV: writer, epoch or '', cap, call number, then for each prompt: id, n, n times (content id, label, record)
-- Returns '<call number>:<evicted>:<one letter a record>': i inserted, d duplicate, q quarantined before, c over the cap
local state, index, totals, labels, pins = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local writer, epoch, cap, call = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

-- The same call delivered again, after an answer that was lost: the same answer.
local before = redis.call('GET', KEYS[6])
if before and string.sub(before, 1, #call + 1) == call .. ':' then return before end

if redis.call('HEXISTS', state, 'sealed') == 1 then return redis.error_reply('SEALED pool') end
if epoch ~= '' then
  local newest = tonumber(redis.call('HGET', state, 'epoch:' .. writer) or epoch)
  if tonumber(epoch) < newest then return redis.error_reply('FENCED ' .. newest) end
  redis.call('HSET', state, 'epoch:' .. writer, epoch)
end

local added = {}
local function count(label, records, bytes)
  local sum = added[label] or {0, 0}
  added[label] = {sum[1] + records, sum[2] + bytes}
end

local label_ids = {}
local function label_id(label)
  local id = label_ids[label] or redis.call('HGET', labels, label)
  if not id then
    id = redis.call('HINCRBY', state, 'labels', 1)
    redis.call('HSET', labels, label, id)
  end
  label_ids[label] = id
  return id
end

-- Byte by byte: Lua's own < follows the server's locale.
local function above(a, b)
  for at = 1, #a do
    local x, y = string.byte(a, at), string.byte(b, at)
    if x ~= y then return x > y end
  end
  return false
end

-- What stays is the `cap` smallest content ids (pinned ones always): a uniform choice that no order of arrival changes.
local function evict(key)
  local largest
  for _, id in ipairs(redis.call('HKEYS', key)) do
    if (not largest or above(id, largest)) and redis.call('SISMEMBER', pins, id) == 0 then largest = id end
  end
  local value = redis.call('HGET', key, largest)
  count(tostring(struct.unpack('<I4', value)), -1, -#value)
  redis.call('HDEL', key, largest)
  return largest
end

local letters, evicted, changed, at, key_at = {}, 0, {}, 5, 7
while at <= #ARGV do
  local prompt, n, key, quarantine = ARGV[at], tonumber(ARGV[at + 1]), KEYS[key_at], KEYS[key_at + 1]
  at, key_at = at + 2, key_at + 2
  local strict, held, touched = redis.call('EXISTS', quarantine) == 1, redis.call('HLEN', key), false
  for _ = 1, n do
    local id, label, record = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local letter = 'd'
    at = at + 3
    if strict and redis.call('HEXISTS', quarantine, id) == 1 then
      letter = 'q'
    else
      local number = label_id(label)
      if redis.call('HSETNX', key, id, struct.pack('<I4', number) .. record) == 1 then
        count(tostring(number), 1, #record + 4)
        letter, held, touched = 'i', held + 1, true
        if held > cap then
          held = held - 1
          if evict(key) == id then letter = 'c' else evicted = evicted + 1 end
        end
      end
    end
    letters[#letters + 1] = letter
  end
  if touched then changed[#changed + 1] = prompt end
end

if #changed > 0 then
  local generation = redis.call('HINCRBY', state, 'generation', 1)
  local members = {}
  for _, prompt in ipairs(changed) do
    members[#members + 1] = generation
    members[#members + 1] = prompt
  end
  redis.call('ZADD', index, unpack(members))
  for label, sum in pairs(added) do
    redis.call('HINCRBY', totals, 'n:' .. label, sum[1])
    redis.call('HINCRBY', totals, 'b:' .. label, sum[2])
  end
end
local reply = call .. ':' .. evicted .. ':' .. table.concat(letters)
redis.call('SET', KEYS[6], reply, 'EX', 3600)
return reply
